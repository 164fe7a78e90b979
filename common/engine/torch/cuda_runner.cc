// Runs steps on an NVIDIA GPU, with a stream of their own, page-locked logits, a CUDA graph for each shape of
// decode steps, and NCCL between ranks. Part of liboutrider_torch_cuda.so.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <map>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/engine/torch/step_runner.h"

namespace outrider::libtorch {
namespace {

// The maximum number of graphs that are kept. They share one pool of memory for intermediate results.
constexpr size_t kMaxGraphs = 64;

void Check(ncclResult_t result) { TORCH_CHECK(result == ncclSuccess, "NCCL: ", ncclGetErrorString(result)); }

// Replaces c10d's group for NCCL, whose headers need those of cuSPARSE and cuSOLVER.
class NcclRanks final : public DeviceRanks {
 public:
  NcclRanks(const ncclUniqueId& id, int rank, int size, const c10::cuda::CUDAStream& stream)
      : size_(size), stream_(stream) {
    Check(ncclCommInitRank(&ranks_, size, id, rank));
  }
  // Does not wait for ranks that may be gone.
  ~NcclRanks() override { ncclCommAbort(ranks_); }

  void Sum(at::Tensor& tensor) override {
    float* const data = tensor.mutable_data_ptr<float>();
    Check(ncclAllReduce(data, data, static_cast<size_t>(tensor.numel()), ncclFloat32, ncclSum, ranks_,
                        stream_));
  }
  at::Tensor Gather(const at::Tensor& tensor) override {
    std::vector<int64_t> sizes = tensor.sizes().vec();
    sizes.insert(sizes.begin(), size_);
    at::Tensor all = at::empty(sizes, tensor.options());
    Check(ncclAllGather(tensor.const_data_ptr<float>(), all.mutable_data_ptr<float>(),
                        static_cast<size_t>(tensor.numel()), ncclFloat32, ranks_, stream_));
    return all;
  }

 private:
  const int size_;
  const c10::cuda::CUDAStream stream_;
  ncclComm_t ranks_ = nullptr;
};

class CudaRunner final : public StepRunner {
 public:
  CudaRunner(c10::DeviceIndex device, bool high_priority)
      : stream_(c10::cuda::getStreamFromPool(high_priority, device)), pool_(at::cuda::graph_pool_handle()) {}

  at::Device device() const override { return stream_.device(); }
  size_t FreeMemory() const override {
    const c10::cuda::CUDAGuard guard(stream_.device());
    size_t free_bytes = 0, all_bytes = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &all_bytes));
    return free_bytes;
  }
  bool PrefersFewShapes() const override { return true; }

  std::unique_ptr<DeviceRanks> Connect(int rank, int size,
                                       absl::FunctionRef<void(absl::Span<char>)> share) override {
    ncclUniqueId id{};
    if (rank == 0) Check(ncclGetUniqueId(&id));
    share(absl::MakeSpan(id.internal));
    return std::make_unique<NcclRanks>(id, rank, size, stream_);
  }

  void InOrder(absl::FunctionRef<void()> work) override {
    const c10::cuda::CUDAStreamGuard guard(stream_);
    work();
  }

  at::Tensor Compute(const Step& step, Forward forward) override {
    return step.is_decode ? Replay(step, forward) : forward(step).contiguous();
  }
  at::Tensor ToHost(const at::Tensor& logits) override {
    if (!host_.defined() || host_.size(0) < logits.size(0)) {
      host_ = at::empty(logits.sizes(), at::TensorOptions(at::kFloat).pinned_memory(true));
    }
    const at::Tensor to = host_.narrow(0, 0, logits.size(0));
    to.copy_(logits, /*non_blocking=*/true);
    stream_.synchronize();
    return to;
  }
  GraphCaptures graph_captures() const override { return captures_; }

 private:
  struct Graph {
    Step inputs;  // what the graph reads; it writes to graph_logits_
    at::cuda::CUDAGraph graph;
  };
  using Shape = std::vector<int64_t>;

  static Shape ShapeOf(const Step& step) {
    Shape shape;
    for (const at::Tensor& tensor : TensorsOf(step)) {
      shape.insert(shape.end(), tensor.sizes().begin(), tensor.sizes().end());
    }
    return shape;
  }

  at::Tensor Replay(const Step& step, Forward forward) {
    const auto found = graphs_.find(ShapeOf(step));
    if (found == graphs_.end()) return RunAndCapture(step, forward);
    const std::vector<at::Tensor> from = TensorsOf(step), to = TensorsOf(found->second->inputs);
    for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
    found->second->graph.replay();
    return graph_logits_.narrow(0, 0, step.logit_rows.size(0));
  }

  // Runs the step first, so that libraries make their first allocations before the capture. If the capture
  // fails, steps of this shape only take longer.
  at::Tensor RunAndCapture(const Step& step, Forward forward) {
    const at::Tensor logits = forward(step);
    if (!captures_.failure.ok()) return logits;
    try {
      Capture(step, forward, logits);
      ++captures_.count;
    } catch (const c10::Error& error) {
      const absl::string_view why = error.what_without_backtrace();
      captures_.failure =
          absl::InternalError(absl::StrCat("capturing a step: ", why.substr(0, why.find('\n'))));
    }
    return logits;
  }

  void Capture(const Step& step, Forward forward, const at::Tensor& logits) {
    if (!graph_logits_.defined()) {
      graph_logits_ = at::empty({kMaxDecodeRows, logits.size(1)}, logits.options());
    }
    if (graphs_.size() >= kMaxGraphs) {
      graphs_.clear();
      pool_ = at::cuda::graph_pool_handle();  // the allocator gives up a pool with its last graph
    }
    auto captured = std::make_unique<Graph>();
    captured->inputs = step;
    captured->graph.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    try {
      graph_logits_.narrow(0, 0, logits.size(0)).copy_(forward(captured->inputs));
    } catch (const c10::Error&) {
      captured->graph.capture_end();  // otherwise the stream would go on recording
      throw;
    }
    captured->graph.capture_end();
    graphs_.emplace(ShapeOf(step), std::move(captured));
  }

  const c10::cuda::CUDAStream stream_;
  at::cuda::MempoolId_t pool_;  // of all graphs
  std::map<Shape, std::unique_ptr<Graph>> graphs_;
  GraphCaptures captures_;
  at::Tensor graph_logits_;  // [kMaxDecodeRows, vocab], not in the pool
  at::Tensor host_;          // [rows, vocab], page-locked
};

}  // namespace
}  // namespace outrider::libtorch

extern "C" __attribute__((visibility("default"))) void outrider_create_torch_cuda_runner(
    int device, bool high_priority, absl::StatusOr<std::unique_ptr<outrider::libtorch::StepRunner>>& result) {
  if (const int devices = c10::cuda::device_count(); device >= devices) {
    result = absl::FailedPreconditionError(absl::StrCat("this machine has ", devices, " usable GPUs"));
    return;
  }
  try {
    result = std::make_unique<outrider::libtorch::CudaRunner>(static_cast<c10::DeviceIndex>(device),
                                                              high_priority);
  } catch (const c10::Error& error) {
    result = absl::FailedPreconditionError(error.what_without_backtrace());
  }
}

// Both plug-ins must agree on the type of the function.
static_assert(std::is_same_v<decltype(outrider_create_torch_cuda_runner),
                             outrider::libtorch::CreateCudaRunnerFunction>);
