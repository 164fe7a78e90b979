// The model behind --device cuda:N.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/cuda/attention.h"
#include "common/engine/cuda/decide_convert.h"
#include "common/engine/cuda/decoder_layers.h"
#include "common/engine/cuda/device_memory.h"
#include "common/engine/cuda/matmul.h"
#include "common/engine/cuda/step_graphs.h"
#include "common/engine/cuda/step_memory.h"
#include "common/engine/cuda/step_plan.h"
#include "common/engine/decoder/decoder_config.h"
#include "common/engine/model.h"
#include "common/engine/runner_options.h"

namespace outrider::cuda {

// Enqueues a whole step (draft passes, sampling and verdicts included) and waits for it once. Steps of up to
// kMaxCapturedRows rows run from CUDA graphs (step_graphs.h); common ones are captured by Create.
class CudaModel final : public Model {
 public:
  // FAILED_PRECONDITION if there is no such device; INVALID_ARGUMENT, naming file and field, for a model that
  // the kernels do not support; else errors of files and memory.
  static absl::StatusOr<std::unique_ptr<Model>> Create(const DecoderConfig& spec, const TensorSource& weights,
                                                       int device, const RunnerOptions& options);
  ~CudaModel() override;

  absl::StatusOr<LogitsView> Forward(absl::Span<const SequenceRows> batch, const PassOptions& pass) override;
  void CopyBlock(BlockId from, BlockId to) override;
  void MoveSlots(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves) override;
  absl::Status ReadSlot(BlockId block, int slot, absl::Span<float> values) override;
  void Wake() override {}

  bool CanRun(const DeviceTask& task) const override { return cuda::CanRun(task, spec_); }
  bool row_invariant() const override { return true; }
  bool tree_row_invariant() const override { return true; }
  std::string dtype() const override { return operand_ == Operand::kFp8 ? "fp8" : "bfloat16"; }
  std::string kernel_name() const override { return "cuda"; }
  std::string algorithms() const override { return InWords(matmul_->choices()); }
  std::string bits_depend_on() const override { return matmul_->choices().gpu + ", " + algorithms(); }
  GraphCaptures graph_captures() const override { return graphs_.captures(); }
  int kv_blocks() const override { return kv_blocks_; }
  int max_positions() const override { return max_positions_; }
  size_t bytes_per_block() const override { return layers_->bytes_per_block(); }
  size_t weight_bytes() const override { return layers_->weight_bytes(); }

 private:
  CudaModel(const DecoderConfig& spec, int device, const RunnerOptions& options)
      : spec_(spec),
        device_(device),
        options_(options),
        operand_(options.dtype == "fp8" ? Operand::kFp8 : Operand::kBFloat16),
        capture_(options.observe ? StepGraphs::Capture::kNever : StepGraphs::Capture::kOnSecondSight) {}
  absl::Status Load(const TensorSource& source);
  absl::Status AllocateStepMemory();
  // Runs made-up steps, so that no request pays for the first one. Allocates the KV pool once the memory that
  // everything else takes is known, because the pool may take all that is left.
  absl::Status WarmUpAndAllocateCache();
  absl::Status Run(const std::vector<WarmUpStep>& steps, StepGraphs::Capture capture);

  // Uploads the attention plans of all passes at once and launches the graph.
  absl::Status Replay(const StepPlan& plan, const GraphShape& shape, cudaGraphExec_t graph);
  // Enqueues the operations of a graph of this shape. Their plans are at the offsets where Replay adds them.
  absl::Status EnqueueCaptured(const GraphShape& shape);
  // Runs a step without a graph, with any number of rows.
  absl::Status RunEager(const StepPlan& plan, const StepShape& shape);
  // Uploads the attention plans of a pass: several if the pass exceeds the capacity. Waits for the stream
  // only if there is no room for the plans.
  absl::StatusOr<std::vector<PlannedAttention>> UploadAttention(const PassPlan& pass);
  // Pass 0 is the first one, and copies the step's input to the device; the others draft. The last copies the
  // step's output to the host.
  absl::Status EnqueuePass(const StepShape& shape, int pass, std::vector<PlannedAttention> attention);

  const DecoderConfig spec_;
  const int device_;
  const RunnerOptions options_;
  const Operand operand_;
  int max_rows_ = 0;
  int max_positions_ = 0;
  int kv_blocks_ = 0;
  std::vector<BlockId> spare_;  // a block table with one block that no sequence uses

  cudaStream_t stream_ = nullptr;
  std::unique_ptr<Matmul> matmul_;
  std::unique_ptr<Attention> attention_;
  std::unique_ptr<DecoderLayers> layers_;
  PinnedMemory host_inputs_, host_outputs_;
  DeviceMemory inputs_, outputs_;
  // [rows] below are rows with logits: the smaller of max_rows and kMaxLogitRows, plus kMaxIdleRows.
  DeviceMemory logits_;       // [rows, logit_columns]
  PinnedMemory host_logits_;  // [rows, logit_columns], without the kMaxIdleRows rows
  DeviceMemory shaped_;       // [rows]
  DeviceMemory next_tokens_;  // [max_rows]
  DeviceMemory head_tokens_;  // [logit_columns]; null unless the head is cut
  DeviceMemory races_;        // [rows]
  // The maximum number of graphs, for which the KV pool leaves memory.
  static constexpr size_t kMaxGraphs = 128;
  StepGraphs graphs_{kMaxGraphs};
  StepGraphs::Capture capture_;  // applies to the next step
};

}  // namespace outrider::cuda
