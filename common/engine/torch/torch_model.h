// The model behind --engine torch.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/engine/decoder/decoder_config.h"
#include "common/engine/decoder/tensor_source.h"
#include "common/engine/model.h"
#include "common/engine/runner_options.h"
#include "common/engine/torch/decoder.h"
#include "common/engine/torch/rank_group.h"
#include "common/engine/torch/step_runner.h"

namespace outrider::libtorch {

// Runs the decoder of decoder.h on libtorch's threads and devices. A row's results depend on the rows beside
// it, up to rounding: libtorch computes products differently by shape.
//
// With several ranks, rank 0 sends each step to the others, which run it too, in Follow.
class TorchModel final : public Model {
 public:
  // cuda_device is N of cuda:N, nothing for the CPU; options.threads is not 0. Waits for the other ranks, if
  // there are any. FAILED_PRECONDITION if libtorch has no such device; RESOURCE_EXHAUSTED if there is not
  // enough memory; INVALID_ARGUMENT if the ranks cannot share the model; UNAVAILABLE if they do not come;
  // else errors of the weights.
  static absl::StatusOr<std::unique_ptr<Model>> Create(const DecoderConfig& spec, const TensorSource& weights,
                                                       std::optional<int> cuda_device,
                                                       const RunnerOptions& options);
  // The same on this runner.
  static absl::StatusOr<std::unique_ptr<Model>> Create(const DecoderConfig& spec, const TensorSource& weights,
                                                       std::unique_ptr<StepRunner> runner,
                                                       const RunnerOptions& options);

  absl::StatusOr<LogitsView> Forward(absl::Span<const SequenceRows> batch, const PassOptions& pass) override;
  void CopyBlock(BlockId from, BlockId to) override;
  void MoveSlots(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves) override;
  absl::Status ReadSlot(BlockId block, int slot, absl::Span<float> values) override;
  // Not with several ranks: the others are not sent input states.
  bool has_hidden_states() const override { return ranks_ == nullptr; }
  absl::StatusOr<LogitsView> Project(absl::Span<const float> hidden) override;
  absl::Status ReadEmbeddings(absl::Span<const TokenId> tokens, absl::Span<float> to) override;
  absl::StatusOr<std::unique_ptr<Matrix>> LoadMatrix(const TensorView& weights) override;
  void Wake() override {}
  absl::Status Follow() override;

  bool row_invariant() const override { return false; }
  bool tree_row_invariant() const override { return false; }
  std::string dtype() const override { return bfloat16_ ? "bfloat16" : "float32"; }
  std::string kernel_name() const override { return "torch"; }
  std::string bits_depend_on() const override { return bits_depend_on_; }
  GraphCaptures graph_captures() const override { return runner_->graph_captures(); }
  int kv_blocks() const override { return kv_blocks_; }
  int max_positions() const override { return max_positions_; }
  size_t bytes_per_block() const override { return bytes_per_block_; }
  size_t weight_bytes() const override { return decoder_->weights().bytes; }

 private:
  TorchModel(std::unique_ptr<StepRunner> runner, bool bfloat16)
      : runner_(std::move(runner)), bfloat16_(bfloat16) {}

  absl::Status Load(const DecoderConfig& model, const TensorSource& source, const RunnerOptions& options);
  // Checks that all ranks have the same model and shapes.
  absl::Status CheckAgreement(const Weights& weights, const RunnerOptions& options);
  Step ToStep(absl::Span<const SequenceRows> batch, const PassOptions& pass) const;
  // The wanted logits on the device. `hidden` is set as by Decoder::Forward, and may be null.
  at::Tensor Compute(absl::Span<const SequenceRows> batch, const PassOptions& pass,
                     at::Tensor* hidden = nullptr);
  // Changes the cache, in this rank and, by sending `numbers`, in the others.
  void ChangeCache(absl::string_view what, absl::Span<const int64_t> numbers,
                   absl::FunctionRef<void(PagedCache& cache)> change);
  // Executes a command that rank 0 sent.
  absl::Status Obey(absl::Span<const int64_t> numbers);
  at::TensorOptions Tensors() const {
    return at::TensorOptions(bfloat16_ ? at::kBFloat16 : at::kFloat).device(runner_->device());
  }

  // Null: this process has all of the model. Ends after the runner: NCCL waits for the end of the graphs that
  // hold its operations before it ends itself.
  std::unique_ptr<RankGroup> ranks_;
  const std::unique_ptr<StepRunner> runner_;
  const bool bfloat16_;
  StepOptions step_options_;
  int kv_blocks_ = 0;
  std::string bits_depend_on_;
  int max_positions_ = 0;
  size_t bytes_per_block_ = 0;
  bool observed_ = false;           // by RunnerOptions::observe; no step is captured then
  at::Tensor hidden_;               // the last pass's hidden states, on the host
  absl::Status cache_status_;       // the first failure to change the cache, for Forward to report
  std::optional<Decoder> decoder_;  // its cache has one block more, which no sequence uses
};

}  // namespace outrider::libtorch
