// The forward pass against transformers.
#include <algorithm>

#include "tests/unit/engine_goldens.h"

namespace outrider::testing {
namespace {

class RandomModel : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};

INSTANTIATE_TEST_SUITE_P(All, RandomModel,
                         ::testing::Combine(::testing::ValuesIn(RandomModels()),
                                            ::testing::ValuesIn(RunnableKernels())),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param) + "_" + std::get<1>(info.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(RandomModel, Float32LogitsAreThoseOfTransformers) {
  RunnerOptions options = Options(std::get<0>(GetParam()));
  options.kernels = std::get<1>(GetParam());
  const auto runner = LoadOrDie(options);
  const Golden golden = ReadGolden(std::get<0>(GetParam()), runner->config().decoder.vocab_size);
  const Logits logits = AllLogits(*runner, golden.tokens);
  ASSERT_EQ(logits.size(), golden.logits.size());
  EXPECT_LE(LargestDifference(logits, golden.logits), 1e-4 * golden.spread);
  RecordProperty("difference", std::to_string(LargestDifference(logits, golden.logits) / golden.spread));
}

TEST_P(RandomModel, BFloat16LogitsAreNear) {
  RunnerOptions options = Options(std::get<0>(GetParam()));
  options.kernels = std::get<1>(GetParam());
  options.dtype = "bfloat16";
  const auto runner = LoadOrDie(options);
  const Golden golden = ReadGolden(std::get<0>(GetParam()), runner->config().decoder.vocab_size);
  const Logits logits = AllLogits(*runner, golden.tokens);
  ASSERT_EQ(logits.size(), golden.logits.size());
  // The only difference is that weights, keys and values, and with some kernels operands, are rounded to
  // bfloat16's eight bits.
  const double tolerance = FindKernels(options.kernels.c_str())->rounds_operands ? 0.05 : 0.03;
  EXPECT_LE(RootMeanSquareDifference(logits, golden.logits), tolerance * golden.spread);
  RecordProperty("difference",
                 std::to_string(RootMeanSquareDifference(logits, golden.logits) / golden.spread));
}

TEST_P(RandomModel, Int8LogitsAreNear) {
  RunnerOptions options = Options(std::get<0>(GetParam()));
  options.kernels = std::get<1>(GetParam());
  options.dtype = "int8";
  const auto runner = LoadOrDie(options);
  const Golden golden = ReadGolden(std::get<0>(GetParam()), runner->config().decoder.vocab_size);
  EXPECT_LE(RootMeanSquareDifference(AllLogits(*runner, golden.tokens), golden.logits), 0.1 * golden.spread);
}

class ShippedModel : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string golden_path = DataDir(GetParam() + ".json");
    golden_ = ReadJson(golden_path);
    tokens_ = golden_["tokens"].get<std::vector<TokenId>>();
  }

  Logits Run(const std::string& dtype) {
    RunnerOptions options = Options("");
    options.model_dir = "models/" + GetParam();
    options.dtype = dtype;
    return AllLogits(*LoadOrDie(options), tokens_);
  }

  int AgreeingPositions(const Logits& logits, const char* golden_best) {
    const std::vector<int> best = golden_[golden_best].get<std::vector<int>>();
    int agreeing = 0;
    for (size_t r = 0; r < logits.size(); ++r) agreeing += Best(logits[r]) == best[r];
    return agreeing;
  }

  nlohmann::json golden_;
  std::vector<TokenId> tokens_;
};

INSTANTIATE_TEST_SUITE_P(Pair, ShippedModel, ::testing::Values("tiny-target", "tiny-draft"),
                         [](const auto& info) {
                           return info.param == "tiny-target" ? std::string("Target") : std::string("Draft");
                         });

TEST_P(ShippedModel, Float32TopLogitsAreThoseOfTransformers) {
  const Logits logits = Run("float32");
  ASSERT_EQ(logits.size(), tokens_.size());
  EXPECT_EQ(AgreeingPositions(logits, "float32_best"), static_cast<int>(tokens_.size()));
  const double tolerance = 1e-4 * golden_["spread"].get<double>();
  for (size_t r = 0; r < logits.size(); ++r) {
    for (size_t i = 0; i < golden_["top_tokens"][r].size(); ++i) {
      const float logit = logits[r][golden_["top_tokens"][r][i].get<size_t>()];
      ASSERT_NEAR(logit, golden_["top_logits"][r][i].get<float>(), tolerance) << "position " << r;
    }
  }
}

TEST_P(ShippedModel, BFloat16PicksOtherTokensOnlyWhereTheBestAreNearlyTied) {
  const Logits logits = Run("bfloat16");
  ASSERT_EQ(logits.size(), tokens_.size());
  EXPECT_GE(AgreeingPositions(logits, "float32_best"), static_cast<int>(tokens_.size()) * 98 / 100);
  const double tolerance = 0.05 * golden_["spread"].get<double>();
  for (size_t r = 0; r < logits.size(); ++r) {
    const std::vector<int> top = golden_["top_tokens"][r].get<std::vector<int>>();
    const auto rank = std::find(top.begin(), top.end(), Best(logits[r])) - top.begin();
    ASSERT_LT(rank, static_cast<ptrdiff_t>(top.size())) << "position " << r;
    const nlohmann::json& top_logits = golden_["top_logits"][r];
    EXPECT_LE(top_logits[0].get<double>() - top_logits[static_cast<size_t>(rank)].get<double>(), tolerance)
        << "position " << r;
  }
}

TEST_P(ShippedModel, Int8MostlyPicksTheSameTokensAndTakesHalfTheMemory) {
  EXPECT_GE(AgreeingPositions(Run("int8"), "float32_best"), static_cast<int>(tokens_.size()) * 93 / 100);
  RunnerOptions options = Options("");
  options.model_dir = "models/" + GetParam();
  options.dtype = "bfloat16";
  const size_t bfloat16 = LoadOrDie(options)->weight_bytes();
  options.dtype = "int8";
  EXPECT_LT(LoadOrDie(options)->weight_bytes(), bfloat16 * 6 / 10);
}

}  // namespace
}  // namespace outrider::testing
