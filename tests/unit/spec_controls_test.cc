#include "common/spec/controls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

namespace outrider {
namespace {

using testing::HasSubstr;

constexpr int kVocab = 6;
const std::vector<float> kLogits = {0, 1, 2, 3, 2, -1};

// The distribution after the controls, as double.
std::vector<double> Shape(const SamplingParams& params, std::vector<float> logits = kLogits,
                          const std::vector<TokenId>& context = {}, size_t prompt_length = 0) {
  absl::StatusOr<Controls> controls =
      Controls::Create(params, prompt_length, static_cast<int>(logits.size()));
  EXPECT_TRUE(controls.ok()) << controls.status();
  const absl::StatusOr<WeightRow> row = controls->Apply(context, logits);
  EXPECT_TRUE(row.ok()) << row.status();
  std::vector<double> p;
  for (size_t token = 0; token < logits.size(); ++token) p.push_back((*row)(static_cast<TokenId>(token)));
  return p;
}

SamplingParams With(const std::function<void(SamplingParams&)>& set) {
  SamplingParams params;
  set(params);
  return params;
}

std::vector<double> Softmax(std::vector<double> logits) {
  double sum = 0;
  for (double& l : logits) sum += l = std::exp(l);
  for (double& l : logits) l /= sum;
  return logits;
}

void ExpectNear(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-6) << "token " << i;
}

constexpr double kGone = -std::numeric_limits<double>::infinity();

TEST(Controls, DefaultsAreTheSoftmax) { ExpectNear(Shape({}), Softmax({0, 1, 2, 3, 2, -1})); }

TEST(Controls, TemperatureDividesTheLogits) {
  ExpectNear(Shape(With([](auto& p) { p.temperature = 2; })), Softmax({0, .5, 1, 1.5, 1, -.5}));
}

TEST(Controls, TemperatureZeroIsOneHotWithTiesToTheLowestId) {
  ExpectNear(Shape(With([](auto& p) { p.temperature = 0; }), {1, 3, 3, 0}), {0, 1, 0, 0});
}

TEST(Controls, ATinyTemperatureIsTheLimitAndNotNan) {
  for (double temperature : {1e-4, 1e-30, 1e-310}) {
    ExpectNear(Shape(With([&](auto& p) { p.temperature = temperature; }), {1, 3, 3, 0}), {0, .5, .5, 0});
  }
}

TEST(Controls, TopKKeepsExactlyKWithTiesToTheLowestIds) {
  ExpectNear(Shape(With([](auto& p) { p.top_k = 2; })), Softmax({kGone, kGone, 2, 3, kGone, kGone}));
  ExpectNear(Shape(With([](auto& p) { p.top_k = 99; })), Softmax({0, 1, 2, 3, 2, -1}));
}

TEST(Controls, TopPKeepsTheSmallestSetWithEnoughMass) {
  const std::vector<float> logits = {std::log(.1f), std::log(.5f), std::log(.15f), std::log(.25f)};
  const auto shape = [&](double top_p) { return Shape(With([&](auto& p) { p.top_p = top_p; }), logits); };
  ExpectNear(shape(.4), {0, 1, 0, 0});
  ExpectNear(shape(.6), {0, 2. / 3, 0, 1. / 3});
  ExpectNear(shape(.8), {0, 5. / 9, 1.5 / 9, 2.5 / 9});
  ExpectNear(shape(1e-9), {0, 1, 0, 0});
  ExpectNear(shape(.999), {.1, .5, .15, .25});
}

TEST(Controls, TopPCountsTheMassThatTopKLeft) {
  const std::vector<float> logits = {std::log(.1f), std::log(.5f), std::log(.15f), std::log(.25f)};
  // After top_k 3 the masses are .555, .277 and .166, so two of them reach .8.
  const auto params = With([](auto& p) {
    p.top_k = 3;
    p.top_p = .8;
  });
  ExpectNear(Shape(params, logits), {0, 2. / 3, 0, 1. / 3});
}

TEST(Controls, MinPIsRelativeToTheBestToken) {
  const std::vector<float> logits = {std::log(.1f), std::log(.5f), std::log(.15f), std::log(.25f)};
  ExpectNear(Shape(With([](auto& p) { p.min_p = .29; }), logits), {0, .5 / .9, .15 / .9, .25 / .9});
  ExpectNear(Shape(With([](auto& p) { p.min_p = 1; }), logits), {0, 1, 0, 0});
}

TEST(Controls, RepetitionPenaltyCountsPromptAndOutputOnce) {
  const auto params = With([](auto& p) { p.repetition_penalty = 2; });
  ExpectNear(Shape(params, kLogits, {5, 3, 3}, 1), Softmax({0, 1, 2, 1.5, 2, -2}));
}

TEST(Controls, PresenceAndFrequencyPenaltiesCountOutputOnly) {
  const auto params = With([](auto& p) {
    p.presence_penalty = .5;
    p.frequency_penalty = .25;
  });
  ExpectNear(Shape(params, kLogits, {5, 3, 3, 2}, 1), Softmax({0, 1, 1.25, 2, 2, -1}));
}

TEST(Controls, LogitBiasAllowedAndBadIds) {
  ExpectNear(Shape(With([](auto& p) { p.logit_bias = {{0, 3}, {3, -1}}; })), Softmax({3, 1, 2, 2, 2, -1}));
  ExpectNear(Shape(With([](auto& p) {
               p.allowed_ids = {5, 0};
             })),
             Softmax({0, kGone, kGone, kGone, kGone, -1}));
  ExpectNear(Shape(With([](auto& p) { p.bad_ids = {3, 4}; })), Softmax({0, 1, 2, kGone, kGone, -1}));
}

TEST(Controls, MinTokensHoldsBackEosUntilEnoughWereOutput) {
  const auto params = With([](auto& p) {
    p.min_tokens = 2;
    p.eos_ids = {3};
  });
  const auto held = Softmax({0, 1, 2, kGone, 2, -1}), open = Softmax({0, 1, 2, 3, 2, -1});
  ExpectNear(Shape(params, kLogits, {1, 1, 1}, 3), held);
  ExpectNear(Shape(params, kLogits, {1, 1, 1, 1}, 3), held);
  ExpectNear(Shape(params, kLogits, {1, 1, 1, 1, 1}, 3), open);
}

TEST(Controls, GreedyTakesTheBestOfTheTokensThatMasksLeave) {
  const auto greedy = [](const std::function<void(SamplingParams&)>& mask) {
    const auto params = With([&](auto& p) {
      p.temperature = 0;
      mask(p);
    });
    return Shape(params, kLogits, {1}, 1);
  };
  ExpectNear(greedy([](auto& p) { p.bad_ids = {3}; }), {0, 0, 1, 0, 0, 0});
  ExpectNear(greedy([](auto& p) { p.allowed_ids = {5, 1, 0}; }), {0, 1, 0, 0, 0, 0});
  ExpectNear(greedy([](auto& p) {
               p.min_tokens = 1;
               p.eos_ids = {3, 2};
             }),
             {0, 0, 0, 0, 1, 0});
}

TEST(Controls, ATokenThatIsLeftKeepsItsWeightHoweverFarAheadTheRemovedOneWas) {
  const std::vector<float> logits = {std::log(.25f), 300, std::log(.75f)};
  ExpectNear(Shape(With([](auto& p) { p.bad_ids = {1}; }), logits), {.25, 0, .75});
}

TEST(Controls, NeverKeepNothing) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    std::vector<float> logits(1 + random() % 700);
    for (float& l : logits) l = std::normal_distribution<float>(0, 1 + round % 30)(random);
    SamplingParams params;
    params.temperature = 0.05 + (random() % 100) / 20.0;
    params.top_k = random() % 3 == 0 ? 1 + random() % 40 : 0;
    params.top_p = random() % 2 == 0 ? 1 : (1 + random() % 999) / 1000.0;
    params.min_p = random() % 2 == 0 ? 0 : (random() % 1001) / 1000.0;
    double sum = 0;
    for (double p : Shape(params, logits)) sum += p;
    EXPECT_NEAR(sum, 1, 1e-9);
  }
}

TEST(Controls, LogitsThatAreNotFiniteAreRefused) {
  for (float bad :
       {std::nanf(""), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (double temperature : {0.0, 1.0}) {
      std::vector<float> logits = kLogits;
      logits[4] = bad;
      auto controls = Controls::Create(With([&](auto& p) { p.temperature = temperature; }), 0, kVocab);
      const auto row = controls->Apply({}, logits);
      EXPECT_EQ(row.status().code(), absl::StatusCode::kInternal);
      EXPECT_THAT(std::string(row.status().message()), HasSubstr("logits_not_finite"));
    }
  }
}

TEST(Controls, EachFieldIsRefusedOutsideItsRange) {
  const double nan = std::nan("");
  const auto message = [](const std::function<void(SamplingParams&)>& set) {
    const absl::Status status = ValidateSamplingParams(With(set), kVocab);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(message([&](auto& p) { p.temperature = nan; }), "temperature: nan is not in [0, 100]");
  EXPECT_EQ(message([&](auto& p) { p.temperature = -1; }), "temperature: -1 is not in [0, 100]");
  EXPECT_EQ(message([&](auto& p) { p.top_k = -1; }), "top_k: -1 is not in [0, 2147483647]");
  EXPECT_EQ(message([&](auto& p) { p.top_p = 0; }), "top_p: 0 is not in (0, 1]");
  EXPECT_EQ(message([&](auto& p) { p.top_p = 2; }), "top_p: 2 is not in (0, 1]");
  EXPECT_EQ(message([&](auto& p) { p.min_p = 1.5; }), "min_p: 1.5 is not in [0, 1]");
  EXPECT_EQ(message([&](auto& p) { p.repetition_penalty = 0; }),
            "repetition_penalty: 0 is not in [0.01, 10]");
  EXPECT_EQ(message([&](auto& p) { p.presence_penalty = nan; }), "presence_penalty: nan is not in [-2, 2]");
  EXPECT_EQ(message([&](auto& p) { p.frequency_penalty = 101; }), "frequency_penalty: 101 is not in [-2, 2]");
  EXPECT_EQ(message([&](auto& p) { p.logit_bias = {{6, 1}}; }), "logit_bias: 6 is not in [0, 6)");
  EXPECT_EQ(message([&](auto& p) { p.logit_bias = {{1, 200}}; }), "logit_bias: 200 is not in [-100, 100]");
  EXPECT_EQ(message([&](auto& p) { p.logit_bias = {{1, 1}, {1, 2}}; }), "logit_bias: id 1 is given twice");
  EXPECT_EQ(message([&](auto& p) { p.allowed_ids = {-1}; }), "allowed_ids: -1 is not in [0, 6)");
  EXPECT_EQ(message([&](auto& p) { p.bad_ids = {6}; }), "bad_ids: 6 is not in [0, 6)");
  EXPECT_EQ(message([&](auto& p) { p.min_tokens = -1; }), "min_tokens: -1 is not in [0, 2147483647]");
  EXPECT_EQ(message([&](auto& p) { p.eos_ids = {9}; }), "eos_ids: 9 is not in [0, 6)");
  EXPECT_THAT(message([&](auto& p) { p.bad_ids = {0, 1, 2, 3, 4, 5}; }), HasSubstr("no token is left"));
  EXPECT_THAT(message([&](auto& p) {
                p.allowed_ids = {2};
                p.eos_ids = {2};
                p.min_tokens = 1;
              }),
              HasSubstr("no token is left"));
  EXPECT_TRUE(ValidateSamplingParams({}, kVocab).ok());
}

TEST(TokenCounts, UpdateToAContextThatGrowsIsCutAndBranches) {
  std::mt19937 random(2);
  TokenCounts updated(4);
  std::vector<TokenId> context;
  for (int round = 0; round < 500; ++round) {
    context.resize(random() % (context.size() + 1));
    for (int i = random() % 6; i > 0; --i) context.push_back(random() % 5);
    updated.Update(context);
    TokenCounts fresh(4);
    fresh.Update(context);
    ASSERT_EQ(updated.counts().size(), fresh.counts().size());
    for (const auto& [id, count] : fresh.counts()) {
      const auto it = updated.counts().find(id);
      ASSERT_NE(it, updated.counts().end());
      EXPECT_EQ(it->second.prompt, count.prompt);
      EXPECT_EQ(it->second.output, count.output);
    }
  }
}

}  // namespace
}  // namespace outrider
