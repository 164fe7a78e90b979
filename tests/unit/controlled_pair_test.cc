#include "bench/controlled_pair.h"

#include <cmath>

#include "bench/temporary_folder.h"
#include "tests/unit/engine_helpers.h"

namespace outrider::testing {
namespace {

const std::vector<double> kAlphas = {.6, .83, 0, 1};

ModelShape TinyShape(int hidden) {
  return {.vocab = 1000,
          .hidden = hidden,
          .intermediate = 64,
          .layers = 2,
          .heads = 2,
          .kv_heads = 1,
          .head_dim = 32,
          .context = 128};
}

std::vector<double> Softmax(const std::vector<float>& logits) {
  const float most = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p;
  double sum = 0;
  for (float logit : logits) sum += p.emplace_back(std::exp(double{logit} - most));
  for (double& x : p) x /= sum;
  return p;
}

double Overlap(const std::vector<double>& p, const std::vector<double>& q) {
  double sum = 0;
  for (size_t x = 0; x < p.size(); ++x) sum += std::min(p[x], q[x]);
  return sum;
}

// The logits of a model of the pair after each of `tokens`.
Logits LogitsOf(PairRole role, int hidden, const std::string& dtype, const std::vector<TokenId>& tokens) {
  const TemporaryFolder folder;
  EXPECT_TRUE(WriteModel(folder.path(), TinyShape(hidden), ControlledPair(kAlphas).Weights(role)));
  RunnerOptions options = Options("");
  options.model_dir = folder.path();
  options.dtype = dtype;
  return AllLogits(*LoadOrDie(options), tokens);
}

TEST(ControlledPair, AcceptanceIsTheChosenNumberAfterEveryToken) {
  for (const char* dtype : {"float32", "bfloat16", "int8"}) {
    for (int world = 0; world < static_cast<int>(kAlphas.size()); ++world) {
      std::vector<TokenId> tokens = ControlledPair::Prompt(world, 3);
      // Tokens of both models, of the target only, and of the draft only.
      for (int index : {17, 99, 100, 116}) tokens.push_back(tokens[0] + index);
      const Logits target = LogitsOf(PairRole::kTarget, 128, dtype, tokens);
      const Logits draft = LogitsOf(PairRole::kDraft, 64, dtype, tokens);
      ASSERT_EQ(target.size(), tokens.size());
      for (size_t i = 0; i < tokens.size(); ++i) {
        const double overlap = Overlap(Softmax(target[i]), Softmax(draft[i]));
        EXPECT_NEAR(overlap, kAlphas[static_cast<size_t>(world)], 1e-9) << dtype << ", after " << tokens[i];
      }
    }
  }
}

TEST(ControlledPair, WhatIsDrawnStaysInTheWorldOfThePrompt) {
  const ControlledPair pair(kAlphas);
  const Logits logits = LogitsOf(PairRole::kTarget, 128, "float32", ControlledPair::Prompt(1, 1));
  const std::vector<double> p = Softmax(logits[0]);
  for (int x = 0; x < static_cast<int>(p.size()); ++x) {
    const bool emitted = x >= 200 && x < 400 && pair.Emits(PairRole::kTarget, x);
    EXPECT_NEAR(p[static_cast<size_t>(x)], emitted ? .01 : 0, 1e-9) << x;
  }
}

}  // namespace
}  // namespace outrider::testing
