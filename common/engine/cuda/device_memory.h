// Owners of device memory and of page-locked host memory for transfers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace outrider::cuda {

// Converts a CUDA error: RESOURCE_EXHAUSTED if memory ran out, UNIMPLEMENTED if there is no code for the GPU,
// else INTERNAL. `doing` completes "while ...".
inline absl::Status ToStatus(cudaError_t error, absl::string_view doing) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message = absl::StrCat("CUDA: ", cudaGetErrorString(error), " while ", doing);
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(message);
  if (error == cudaErrorNoKernelImageForDevice) return absl::UnimplementedError(message);
  return absl::InternalError(message);
}

// Owns uninitialised memory, allocated and freed by a pair of CUDA functions. Move-only.
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

}  // namespace outrider::cuda
