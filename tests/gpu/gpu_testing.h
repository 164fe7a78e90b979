// Arrays on the GPU for tests. Everything runs on the default stream, for which a copy to the host waits.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include "common/engine/cuda/device_memory.h"

namespace outrider::testing {

inline constexpr cudaStream_t kDefaultStream = nullptr;

// Fails the test if a CUDA call failed. An error of a kernel shows in the next call that waits for it.
inline void Expect(cudaError_t error) { EXPECT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

// Owns `size` elements on the GPU, a copy of the host's or uninitialised. Memory that runs out ends the
// process.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size)
      : size_(size),
        memory_(cuda::DeviceMemory::Allocate(std::max<size_t>(size, 1) * sizeof(T), "a test").value()) {}
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    Expect(cudaMemcpy(data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }

  T* data() const { return memory_.as<T>(); }
  std::vector<T> Read() const { return Read(size_); }
  // Reads the first `count` elements.
  std::vector<T> Read(size_t count) const {
    std::vector<T> values(count);
    Expect(cudaMemcpy(values.data(), data(), count * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  size_t size_;
  cuda::DeviceMemory memory_;
};

}  // namespace outrider::testing
