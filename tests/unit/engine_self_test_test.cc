// The test that a device's kernels must pass before they are used.
#include "common/engine/self_test.h"

#include <gmock/gmock.h>

#include <limits>
#include <utility>

#include "changed_model.h"

namespace outrider::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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

}  // namespace
}  // namespace outrider::testing
