// The test that a device's kernels must pass before they are used.
#include "common/engine/self_test.h"

#include <gmock/gmock.h>

#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "common/engine/model.h"

namespace outrider::testing {
namespace {

using ::testing::HasSubstr;

// A model of the CPU's whose logits are changed.
class ChangedModel final : public Model {
 public:
  using Change = std::function<absl::Status(LogitsView logits)>;

  ChangedModel(std::unique_ptr<Model> model, Change change)
      : model_(std::move(model)), change_(std::move(change)) {}

  absl::StatusOr<LogitsView> Forward(absl::Span<const SequenceRows> batch) override {
    absl::StatusOr<LogitsView> logits = model_->Forward(batch);
    if (!logits.ok()) return logits;
    if (absl::Status status = change_(*logits); !status.ok()) return status;
    return logits;
  }
  void CopyBlock(BlockId from, BlockId to) override { model_->CopyBlock(from, to); }
  absl::Status ReadSlot(BlockId block, int slot, absl::Span<float> values) override {
    return model_->ReadSlot(block, slot, values);
  }
  void Wake() override { model_->Wake(); }
  bool CanRun(const DeviceTask& task) const override { return model_->CanRun(task); }
  bool row_invariant() const override { return model_->row_invariant(); }
  std::string dtype() const override { return model_->dtype(); }
  std::string kernel_name() const override { return model_->kernel_name(); }
  int kv_blocks() const override { return model_->kv_blocks(); }
  int max_positions() const override { return model_->max_positions(); }
  size_t bytes_per_block() const override { return model_->bytes_per_block(); }
  size_t weight_bytes() const override { return model_->weight_bytes(); }

 private:
  const std::unique_ptr<Model> model_;
  const Change change_;
};

class ChangedBackend final : public Backend {
 public:
  explicit ChangedBackend(ChangedModel::Change change) : change_(std::move(change)) {}

  absl::Status Check(const RunnerOptions& /*options*/) const override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Model>> Load(const DecoderSpec& spec, const TensorSource& weights,
                                              const RunnerOptions& options,
                                              ThreadPool& threads) const override {
    absl::StatusOr<std::unique_ptr<Model>> model =
        (*BackendFor("native", "cpu"))->Load(spec, weights, options, threads);
    if (!model.ok()) return model.status();
    return std::make_unique<ChangedModel>(*std::move(model), change_);
  }

 private:
  const ChangedModel::Change change_;
};

// Of Llama 3.2 3B, but for the vocabulary.
DecoderSpec Spec() {
  DecoderSpec spec;
  spec.vocab_size = 1000;
  spec.hidden_size = 3072;
  spec.intermediate_size = 8192;
  spec.layers = 28;
  spec.heads = 24;
  spec.kv_heads = 8;
  spec.head_dim = 128;
  spec.max_position_embeddings = 131072;
  spec.rope_theta = 500000;
  spec.rope_scaling = Llama3RopeScaling{32, 1, 4, 8192};
  spec.tie_word_embeddings = true;
  return spec;
}

absl::Status Tested(ChangedModel::Change change, const char* dtype = "bfloat16", int block_size = 16) {
  RunnerOptions options;
  options.device = "a device";
  options.dtype = dtype;
  options.block_size = block_size;
  ThreadPool threads(2);
  return SelfTest(ChangedBackend(std::move(change)), Spec(), options, threads);
}

absl::Status Unchanged(LogitsView /*logits*/) { return absl::OkStatus(); }

TEST(SelfTest, WhatTheCpuComputesInAnyDtypePasses) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    for (const int block_size : {1, 16, 64}) {
      EXPECT_TRUE(Tested(Unchanged, dtype, block_size).ok()) << dtype << ", " << block_size;
    }
  }
}

TEST(SelfTest, WrongLogitsAreSeen) {
  const absl::Status status = Tested([](LogitsView logits) {
    for (int r = 0; r < logits.rows; ++r) {
      for (float& x : logits.row(r)) x *= 1.1f;
    }
    return absl::OkStatus();
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("its logits differ from the CPU's by 0.1"));
}

TEST(SelfTest, LogitsThatAreNoNumbersAreSeen) {
  const absl::Status status = Tested([](LogitsView logits) {
    if (logits.rows > 0) logits.row(0)[0] = std::numeric_limits<float>::quiet_NaN();
    return absl::OkStatus();
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
}

TEST(SelfTest, ADeviceThatFailsIsNamedWithItsReason) {
  const absl::Status status =
      Tested([](LogitsView /*logits*/) { return absl::InternalError("no kernel image"); });
  EXPECT_EQ(status, absl::InternalError("no kernel image"));
}

}  // namespace
}  // namespace outrider::testing
