// A buffer with a copy on the host and one on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/engine/cuda/device_memory.h"

namespace outrider::cuda {

// Owns page-locked host memory and device memory of the same size.
class MirroredMemory {
 public:
  static absl::StatusOr<MirroredMemory> Allocate(size_t bytes, absl::string_view what) {
    absl::StatusOr<PinnedMemory> host = PinnedMemory::Allocate(bytes, what);
    if (!host.ok()) return host.status();
    absl::StatusOr<DeviceMemory> device = DeviceMemory::Allocate(bytes, what);
    if (!device.ok()) return device.status();
    MirroredMemory memory;
    memory.host_ = *std::move(host);
    memory.device_ = *std::move(device);
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
