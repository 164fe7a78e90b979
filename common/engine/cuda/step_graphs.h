// The CUDA graphs of steps.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/cuda/step_plan.h"
#include "common/engine/model.h"

namespace outrider::cuda {

// Captures steps and keeps the most recently used graphs. A shape is captured when it occurs for the second
// time, so that a shape that occurs only once does not pay for a capture. Not thread-safe.
class StepGraphs {
 public:
  // Whether Find captures a step that has no graph.
  enum class Capture : uint8_t { kNever, kOnSecondSight, kAtOnce };

  // Keeps at most `most` graphs.
  explicit StepGraphs(size_t most) : most_(most) {}
  // The device must be current, and no graph may be running. The same holds for Find and Drop.
  ~StepGraphs() { Drop(); }
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  // The graph for steps of this shape, valid until the next call; null if the step must be launched directly.
  // To capture a graph, calls `enqueue`, which enqueues a step of this shape on `stream`. After a failed
  // capture, no more graphs are captured, but existing ones stay in use.
  cudaGraphExec_t Find(const GraphShape& shape, Capture capture, cudaStream_t stream,
                       absl::FunctionRef<absl::Status()> enqueue);

  void Drop();

  const GraphCaptures& captures() const { return captures_; }

 private:
  struct Graph {
    cudaGraphExec_t executable;
    uint64_t last_use;
  };

  const size_t most_;
  std::map<GraphShape, Graph> graphs_;
  std::set<GraphShape> seen_;  // shapes that occurred once and were not captured
  uint64_t uses_ = 0;
  GraphCaptures captures_;
};

}  // namespace outrider::cuda
