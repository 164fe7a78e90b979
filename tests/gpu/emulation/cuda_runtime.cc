// The functions of CUDA's runtime that the plug-in calls, on the host: limited memory, streams that never
// wait, and graphs that record work. Calls that CUDA forbids while a stream is captured spoil the capture.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "work.h"

namespace outrider::emulation {
namespace {

using Recording = std::vector<std::function<void()>>;

struct Capture {
  cudaStream_t stream = nullptr;
  Recording work;
  bool spoilt = false;
};

std::mutex mutex;
std::map<void*, size_t> allocations;
size_t used_bytes = 0;
intptr_t last_stream = 0;
GraphCounts counts;
int copies_to_device = 0;
bool allowed = true;
thread_local Capture* capture = nullptr;  // cudaStreamCaptureModeThreadLocal
thread_local cudaError_t last_error = cudaSuccess;

// Returns an error of a call, and keeps it for cudaGetLastError.
cudaError_t Fail(cudaError_t error) {
  last_error = error;
  return error;
}

// Returns whether the thread captures a stream. If so, spoils the capture: this call is forbidden during one.
bool Spoils() {
  if (capture == nullptr) return false;
  capture->spoilt = true;
  Fail(cudaErrorStreamCaptureUnsupported);
  return true;
}

cudaError_t Allocate(void** data, size_t bytes, bool on_device) {
  if (Spoils()) return cudaErrorStreamCaptureUnsupported;
  const std::lock_guard lock(mutex);
  if (on_device && used_bytes + bytes > kMemoryBytes) return Fail(cudaErrorMemoryAllocation);
  *data = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*data, 0xcd, bytes);  // any value will do
  allocations[*data] = on_device ? bytes : 0;
  used_bytes += allocations[*data];
  return cudaSuccess;
}

cudaError_t Free(void* data) {
  if (Spoils()) return cudaErrorStreamCaptureUnsupported;
  const std::lock_guard lock(mutex);
  used_bytes -= allocations[data];
  allocations.erase(data);
  std::free(data);
  return cudaSuccess;
}

}  // namespace

void Enqueue(cudaStream_t stream, std::function<void()> work) {
  if (capture != nullptr && capture->stream == stream) {
    capture->work.push_back(std::move(work));
  } else {
    work();
  }
}

GraphCounts Graphs() {
  const std::lock_guard lock(mutex);
  return counts;
}

int CopiesToDevice() {
  const std::lock_guard lock(mutex);
  return copies_to_device;
}

void FailLaunch(cudaError_t error) { Fail(error); }

void AllowGraphs(bool allow) {
  const std::lock_guard lock(mutex);
  allowed = allow;
}

}  // namespace outrider::emulation

using namespace outrider::emulation;

extern "C" {

cudaError_t cudaMalloc(void** data, size_t bytes) { return Allocate(data, bytes, /*on_device=*/true); }
cudaError_t cudaMallocHost(void** data, size_t bytes) { return Allocate(data, bytes, /*on_device=*/false); }
cudaError_t cudaFree(void* data) { return Free(data); }
cudaError_t cudaFreeHost(void* data) { return Free(data); }

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/) {
  if (Spoils()) return cudaErrorStreamCaptureUnsupported;
  std::memmove(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (capture == nullptr && kind == cudaMemcpyHostToDevice) {
    const std::lock_guard lock(mutex);
    ++copies_to_device;
  }
  Enqueue(stream, [=] { std::memmove(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind /*kind*/, cudaStream_t stream) {
  Enqueue(stream, [=] {
    for (size_t row = 0; row < height; ++row) {
      std::memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch,
                  width);
    }
  });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  Enqueue(stream, [=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* all_bytes) {
  const std::lock_guard lock(mutex);
  *free_bytes = kMemoryBytes - used_bytes;
  *all_bytes = kMemoryBytes;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int /*device*/) { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  *properties = {};
  std::strcpy(properties->name, "emulated");
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "an error of the emulated GPU";
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned /*flags*/, int /*priority*/) {
  const std::lock_guard lock(mutex);
  *stream = reinterpret_cast<cudaStream_t>(++last_stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t /*stream*/) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) {
  return Spoils() ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  const std::lock_guard lock(mutex);
  if (!allowed) return Fail(cudaErrorMemoryAllocation);
  capture = new Capture{.stream = stream, .work = {}};
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t /*stream*/, cudaGraph_t* graph) {
  Capture* const done = std::exchange(capture, nullptr);
  const bool spoilt = done->spoilt;
  *graph = spoilt ? nullptr : reinterpret_cast<cudaGraph_t>(new Recording(std::move(done->work)));
  delete done;
  return spoilt ? Fail(cudaErrorStreamCaptureInvalidated) : cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  const std::lock_guard lock(mutex);
  if (used_bytes + kGraphBytes > kMemoryBytes) return Fail(cudaErrorMemoryAllocation);
  used_bytes += kGraphBytes;
  ++counts.made;
  *executable = reinterpret_cast<cudaGraphExec_t>(new Recording(*reinterpret_cast<Recording*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t /*executable*/, cudaStream_t /*stream*/) {
  const std::lock_guard lock(mutex);
  ++counts.uploaded;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t /*stream*/) {
  {
    const std::lock_guard lock(mutex);
    ++counts.launched;
  }
  for (const auto& work : *reinterpret_cast<Recording*>(executable)) work();
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Recording*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  const std::lock_guard lock(mutex);
  used_bytes -= kGraphBytes;
  ++counts.destroyed;
  delete reinterpret_cast<Recording*>(executable);
  return cudaSuccess;
}

}  // extern "C"
