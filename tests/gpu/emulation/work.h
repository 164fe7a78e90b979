// The order of work on an emulated GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

namespace outrider::emulation {

// Does the work at once; while the stream is captured, records it for the graph instead.
void Enqueue(cudaStream_t stream, std::function<void()> work);

// How many graphs were made so far, uploaded ahead of a launch and destroyed, and how often they were
// launched.
struct GraphCounts {
  int made = 0;
  int uploaded = 0;
  int destroyed = 0;
  int launched = 0;
};
GraphCounts Graphs();

// How many copies to the device were enqueued so far, those of graphs not included.
int CopiesToDevice();

// Makes a kernel's launch fail: cudaGetLastError returns the error.
void FailLaunch(cudaError_t error);

// Sets whether graphs can be made. At first they can.
void AllowGraphs(bool allow);

// The GPU's memory, and what a graph takes of it.
inline constexpr size_t kMemoryBytes = size_t{1} << 30;
inline constexpr size_t kGraphBytes = size_t{1} << 20;

}  // namespace outrider::emulation
