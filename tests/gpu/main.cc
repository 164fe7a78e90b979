// Tests that need a GPU. Without a usable GPU, the program says so in one line and exits with 0.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <cstdio>

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    std::printf("outrider_gpu_test: no GPU can be used here: %s\n",
                error == cudaSuccess ? "there is none" : cudaGetErrorString(error));
    return 0;
  }
  return RUN_ALL_TESTS();
}
