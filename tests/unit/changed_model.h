// A model that computes something else, or fails.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "common/engine/backend.h"
#include "common/engine/model.h"

namespace outrider::testing {

// Wraps a model. `change` may change its logits, or fail its passes.
class ChangedModel : public Model {
 public:
  using Change = std::function<absl::Status(LogitsView logits)>;

  explicit ChangedModel(
      std::unique_ptr<Model> model, Change change = [](LogitsView) { return absl::OkStatus(); })
      : model_(std::move(model)), change_(std::move(change)) {}

  absl::StatusOr<LogitsView> Forward(absl::Span<const SequenceRows> batch, const PassOptions& pass) override {
    absl::StatusOr<LogitsView> logits = model_->Forward(batch, pass);
    if (!logits.ok()) return logits;
    if (absl::Status status = change_(*logits); !status.ok()) return status;
    return logits;
  }
  void CopyBlock(BlockId from, BlockId to) override { model_->CopyBlock(from, to); }
  void MoveSlots(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves) override {
    model_->MoveSlots(blocks, moves);
  }
  absl::Status ReadSlot(BlockId block, int slot, absl::Span<float> values) override {
    return model_->ReadSlot(block, slot, values);
  }
  void Wake() override { model_->Wake(); }
  bool CanRun(const DeviceTask& task) const override { return model_->CanRun(task); }
  bool row_invariant() const override { return model_->row_invariant(); }
  bool tree_row_invariant() const override { return model_->tree_row_invariant(); }
  std::string dtype() const override { return model_->dtype(); }
  std::string kernel_name() const override { return model_->kernel_name(); }
  GraphCaptures graph_captures() const override { return model_->graph_captures(); }
  int kv_blocks() const override { return model_->kv_blocks(); }
  int max_positions() const override { return model_->max_positions(); }
  size_t bytes_per_block() const override { return model_->bytes_per_block(); }
  size_t weight_bytes() const override { return model_->weight_bytes(); }

 private:
  const std::unique_ptr<Model> model_;
  const Change change_;
};

// Wraps the models that the CPU's backend loads.
class WrappingBackend : public Backend {
 public:
  using Wrap = std::function<std::unique_ptr<Model>(std::unique_ptr<Model> model, const DecoderConfig& spec)>;

  explicit WrappingBackend(Wrap wrap) : wrap_(std::move(wrap)) {}

  absl::Status Check(const RunnerOptions& /*options*/) const override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Model>> Load(const DecoderConfig& spec, const TensorSource& weights,
                                              const RunnerOptions& options,
                                              ThreadPool& threads) const override {
    absl::StatusOr<std::unique_ptr<Model>> model =
        (*BackendFor("native", "cpu"))->Load(spec, weights, options, threads);
    if (!model.ok()) return model.status();
    return wrap_(*std::move(model), spec);
  }

 private:
  const Wrap wrap_;
};

class ChangedBackend : public WrappingBackend {
 public:
  explicit ChangedBackend(ChangedModel::Change change)
      : WrappingBackend([change = std::move(change)](std::unique_ptr<Model> model, const DecoderConfig&) {
          return std::make_unique<ChangedModel>(std::move(model), change);
        }) {}
};

}  // namespace outrider::testing
