#include "common/engine/cuda/step_graphs.h"

#include <algorithm>

#include "common/engine/cuda/device_memory.h"
#include "common/spec/status.h"

namespace outrider::cuda {
namespace {

// The maximum number of shapes without a graph that are remembered.
constexpr size_t kMaxSeen = 4096;

absl::StatusOr<cudaGraphExec_t> Record(cudaStream_t stream, absl::FunctionRef<absl::Status()> enqueue) {
  constexpr char kCapturing[] = "capturing a step";
  OUTRIDER_TRY(ToStatus(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), kCapturing));
  absl::Status status = enqueue();
  // End the capture even after an error.
  cudaGraph_t graph = nullptr;
  status.Update(ToStatus(cudaStreamEndCapture(stream, &graph), kCapturing));
  cudaGraphExec_t executable = nullptr;
  if (status.ok())
    status = ToStatus(cudaGraphInstantiate(&executable, graph, 0), "preparing a captured step");
  if (graph != nullptr) cudaGraphDestroy(graph);
  // Otherwise the first launch would upload the graph.
  if (status.ok()) status = ToStatus(cudaGraphUpload(executable, stream), "uploading a captured step");
  if (status.ok()) return executable;
  if (executable != nullptr) cudaGraphExecDestroy(executable);
  return status;
}

}  // namespace

cudaGraphExec_t StepGraphs::Find(const GraphShape& shape, Capture capture, cudaStream_t stream,
                                 absl::FunctionRef<absl::Status()> enqueue) {
  auto graph = graphs_.find(shape);
  if (graph == graphs_.end()) {
    if (capture == Capture::kNever || !captures_.failure.ok()) return nullptr;
    if (seen_.erase(shape) == 0 && capture == Capture::kOnSecondSight) {
      if (seen_.size() >= kMaxSeen) seen_.clear();
      seen_.insert(shape);
      return nullptr;
    }
    if (graphs_.size() >= most_) {
      const auto oldest = std::min_element(graphs_.begin(), graphs_.end(), [](const auto& a, const auto& b) {
        return a.second.last_use < b.second.last_use;
      });
      cudaGraphExecDestroy(oldest->second.executable);
      graphs_.erase(oldest);
    }
    const absl::StatusOr<cudaGraphExec_t> executable = Record(stream, enqueue);
    if (!executable.ok()) {
      captures_.failure = executable.status();
      cudaGetLastError();  // otherwise the next launch would report it
      return nullptr;
    }
    ++captures_.count;
    graph = graphs_.emplace(shape, Graph{*executable, 0}).first;
  }
  graph->second.last_use = ++uses_;
  return graph->second.executable;
}

void StepGraphs::Drop() {
  for (const auto& [shape, graph] : graphs_) cudaGraphExecDestroy(graph.executable);
  graphs_.clear();
}

}  // namespace outrider::cuda
