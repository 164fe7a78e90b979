// The test that a device's kernels must pass before they are used.
#include "common/engine/self_test.h"

#include <gmock/gmock.h>

#include <functional>
#include <limits>
#include <utility>

#include "changed_model.h"
#include "common/engine/runner.h"

namespace outrider::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The decoder of Llama 3.2 3B, but for the vocabulary.
DecoderConfig Spec() {
  DecoderConfig spec;
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

// The CPU's kernels, which compute the model that `change` makes of the one asked for.
class OtherSpecBackend final : public Backend {
 public:
  explicit OtherSpecBackend(std::function<void(DecoderConfig&)> change) : change_(std::move(change)) {}

  absl::Status Check(const RunnerOptions& /*options*/) const override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Model>> Load(const DecoderConfig& spec, const TensorSource& weights,
                                              const RunnerOptions& options,
                                              ThreadPool& threads) const override {
    DecoderConfig other = spec;
    change_(other);
    return (*BackendFor("native", "cpu"))->Load(other, weights, options, threads);
  }

 private:
  const std::function<void(DecoderConfig&)> change_;
};

// Tests a backend that computes a changed model in place of one with sliding windows.
absl::Status TestedWithWindow(int window, std::function<void(DecoderConfig&)> change) {
  DecoderConfig spec = Spec();
  spec.sliding_window = window;
  spec.slides.assign(28, true);
  RunnerOptions options;
  options.device = "a device";
  options.dtype = "bfloat16";
  ThreadPool threads(2);
  return SelfTest(OtherSpecBackend(std::move(change)), spec, options, threads);
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

TEST(SelfTest, WrongLogitsAreSeenAndTheOtherEngineNamed) {
  const absl::Status status = Tested([](LogitsView logits) {
    for (int r = 0; r < logits.rows; ++r) {
      for (float& x : logits.row(r)) x *= 1.1f;
    }
    return absl::OkStatus();
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      status.message(),
      AllOf(HasSubstr("--device a device: the kernels fail their test: logits differ from the CPU's by 0.1"),
            HasSubstr("; --engine torch does without them")));
}

TEST(SelfTest, OfAModelThatSlidesTheWindowIsTested) {
  for (const int window : {1, 2, 4096}) {
    EXPECT_EQ(TestedWithWindow(window, [](DecoderConfig& /*spec*/) {}), absl::OkStatus()) << window;
    for (const int other : {-1, 1, 1000}) {
      if (window + other < 1) continue;
      const absl::Status status =
          TestedWithWindow(window, [&](DecoderConfig& spec) { spec.sliding_window += other; });
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << window << " and " << other;
    }
    EXPECT_FALSE(TestedWithWindow(window, [](DecoderConfig& spec) { spec.slides = {true, true}; }).ok());
    EXPECT_FALSE(TestedWithWindow(window, [](DecoderConfig& spec) { spec.slides = {false, true}; }).ok());
  }
}

TEST(SelfTest, LogitsThatAreNoNumbersAreSeen) {
  const absl::Status status = Tested([](LogitsView logits) {
    if (logits.rows > 0) logits.row(0)[0] = std::numeric_limits<float>::quiet_NaN();
    return absl::OkStatus();
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST(SelfTest, ADeviceThatThereIsNoCodeForHasTheOtherEngineNamed) {
  const absl::Status status =
      Tested([](LogitsView /*logits*/) { return absl::UnimplementedError("no kernel image"); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("no kernel image"), HasSubstr("--engine torch")));
}

TEST(SelfTest, ADeviceThatFailsOtherwiseIsNotHelpedByTheOtherEngine) {
  const absl::Status status =
      Tested([](LogitsView /*logits*/) { return absl::InternalError("an uncorrectable error"); });
  EXPECT_EQ(status, absl::InternalError("an uncorrectable error"));
}

// A changed backend whose kernels must pass the test before they are used.
class UntriedBackend final : public ChangedBackend {
 public:
  using ChangedBackend::ChangedBackend;
  bool IsTestedFirst() const override { return true; }
};

TEST(SelfTest, KernelsThatFailItLoadNoModel) {
  const auto wrong = [](LogitsView logits) {
    if (logits.rows > 0) logits.row(0)[0] += 100;
    return absl::OkStatus();
  };
  RunnerOptions options;
  options.model_dir = "tests/data/engine/mha-float32";
  options.kv_blocks = 4;
  EXPECT_TRUE(Runner::Load(options, UntriedBackend(Unchanged)).ok());
  EXPECT_TRUE(Runner::Load(options, ChangedBackend(wrong)).ok());
  EXPECT_THAT(Runner::Load(options, UntriedBackend(wrong)).status().message(),
              HasSubstr("the kernels fail their test"));
}

}  // namespace
}  // namespace outrider::testing
