// Owners of device memory, of page-locked host memory for transfers, and of one of each.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <initializer_list>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace outrider::cuda {

// Converts an error of CUDA: RESOURCE_EXHAUSTED if memory ran out, UNIMPLEMENTED without code for the GPU,
// else INTERNAL. `doing` completes "while ...".
inline absl::Status ToStatus(cudaError_t error, absl::string_view doing) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message = absl::StrCat("CUDA: ", cudaGetErrorString(error), " while ", doing);
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(message);
  if (error == cudaErrorNoKernelImageForDevice) return absl::UnimplementedError(message);
  return absl::InternalError(message);
}

// Moves the value into `to`; returns the status.
template <class T>
absl::Status Assign(absl::StatusOr<T> from, T& to) {
  if (from.ok()) to = *std::move(from);
  return from.status();
}

// Owns uninitialised memory from a pair of CUDA functions. Move-only.
template <cudaError_t (*kAllocate)(void**, size_t), cudaError_t (*kFree)(void*)>
class Memory {
 public:
  static absl::StatusOr<Memory> Allocate(size_t bytes, absl::string_view what) {
    Memory memory;
    const cudaError_t error = kAllocate(&memory.data_, bytes);
    if (error != cudaSuccess) return ToStatus(error, absl::StrCat("allocating ", bytes, " bytes for ", what));
    memory.bytes_ = bytes;
    return memory;
  }

  Memory() = default;
  Memory(Memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Memory() {
    if (data_ != nullptr) kFree(data_);
  }

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  char* data() const { return as<char>(); }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

namespace internal {
inline cudaError_t Malloc(void** data, size_t bytes) { return cudaMalloc(data, bytes); }
inline cudaError_t MallocHost(void** data, size_t bytes) { return cudaMallocHost(data, bytes); }
}  // namespace internal

using DeviceMemory = Memory<internal::Malloc, cudaFree>;
using PinnedMemory = Memory<internal::MallocHost, cudaFreeHost>;

struct DeviceRequest {
  DeviceMemory& memory;
  size_t bytes;
  const char* what;
};

// Allocates one after the other; stops at the first that fails.
inline absl::Status AllocateAll(std::initializer_list<DeviceRequest> requests) {
  for (const DeviceRequest& request : requests) {
    const absl::Status status = Assign(DeviceMemory::Allocate(request.bytes, request.what), request.memory);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// Owns page-locked host memory and device memory of the same size.
class MirroredMemory {
 public:
  static absl::StatusOr<MirroredMemory> Allocate(size_t bytes, absl::string_view what) {
    MirroredMemory memory;
    absl::Status status = Assign(PinnedMemory::Allocate(bytes, what), memory.host_);
    if (status.ok()) status = Assign(DeviceMemory::Allocate(bytes, what), memory.device_);
    if (!status.ok()) return status;
    return memory;
  }

  char* host() const { return host_.data(); }
  char* device() const { return device_.data(); }

  // Enqueue a copy of the first `bytes` bytes. Can be captured in a graph.
  absl::Status ToDevice(size_t bytes, cudaStream_t stream) const {
    return ToStatus(cudaMemcpyAsync(device(), host(), bytes, cudaMemcpyHostToDevice, stream),
                    "copying a step's input");
  }
  absl::Status ToHost(size_t bytes, cudaStream_t stream) const {
    return ToStatus(cudaMemcpyAsync(host(), device(), bytes, cudaMemcpyDeviceToHost, stream),
                    "copying a step's output");
  }

 private:
  PinnedMemory host_;
  DeviceMemory device_;
};

}  // namespace outrider::cuda
