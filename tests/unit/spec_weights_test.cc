#include "common/spec/weights.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "common/spec/selection.h"
#include "tests/unit/some_of.h"

namespace outrider {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kLargestBelowOne = 1 - 0x1.0p-53;

std::vector<float> RandomWeights(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> weights(n);
  for (float& w : weights) w = std::exp(std::normal_distribution<float>(0, 3)(random));
  return weights;
}

// The order of additions that weights.h promises, written naively.
double PromisedSum(const std::vector<float>& weights) {
  double sum = 0;
  for (size_t begin = 0; begin < weights.size(); begin += kWeightBlock) {
    double lanes[16] = {};
    for (size_t i = begin; i < std::min(begin + kWeightBlock, weights.size()); ++i) {
      lanes[(i - begin) % 16] += weights[i];
    }
    for (int width : {8, 4, 2, 1}) {
      for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
    }
    sum += lanes[0];
  }
  return sum;
}

TEST(SumWeights, AddsInThePromisedOrderBitForBit) {
  for (size_t n : {0, 1, 15, 16, 17, 255, 256, 257, 1000, 4096, 5003}) {
    const std::vector<float> weights = RandomWeights(n, n);
    const std::vector<double> wide(weights.begin(), weights.end());
    EXPECT_EQ(SumWeights(weights), PromisedSum(weights)) << n;
    EXPECT_EQ(SumWeights(wide), PromisedSum(weights)) << n;
  }
}

TEST(SampleIndex, IsTheInverseOfTheCumulativeWeights) {
  const std::vector<float> weights = {0, 1, 0, 2, 1, 0};
  const auto sample = [&](double u) { return SampleIndex(weights, 4, u); };
  EXPECT_EQ(sample(0), 1u);
  EXPECT_EQ(sample(0.2499), 1u);
  EXPECT_EQ(sample(0.25), 3u);
  EXPECT_EQ(sample(0.7499), 3u);
  EXPECT_EQ(sample(0.75), 4u);
  EXPECT_EQ(sample(kLargestBelowOne), 4u);
}

TEST(SampleIndex, NeverReturnsAnIndexWithoutWeightAndNeverRunsBackwards) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> weights = RandomWeights(1 + random() % 900, round);
    for (float& w : weights) w = random() % 3 == 0 ? w : 0;
    weights[random() % weights.size()] = 1e-20f;  // adds nothing to a sum, but is a positive weight
    const double total = SumWeights(weights);
    size_t last = 0;
    for (double u = 0; u < 1; u += 0.003) {
      const size_t index = SampleIndex(weights, total, u);
      EXPECT_GT(weights[index], 0);
      EXPECT_GE(index, last);
      last = index;
    }
    EXPECT_GT(weights[SampleIndex(weights, total, kLargestBelowOne)], 0);
    EXPECT_GT(weights[SampleIndex(weights, total * (1 + 1e-12), kLargestBelowOne)], 0);
  }
}

TEST(FindMax, GivesTheLowestIndexOfALargestValue) {
  for (size_t n : {1, 5, 16, 100, 256, 257, 700}) {
    std::vector<float> values(n, -3.0f);
    values[n / 2] = 2;
    values[n - 1] = 2;
    const MaxResult max = FindMax(values);
    EXPECT_TRUE(max.finite);
    EXPECT_EQ(max.value, 2);
    EXPECT_EQ(max.index, static_cast<TokenId>(n / 2)) << n;
  }
}

TEST(FindMax, SeesEveryNanAndInfinity) {
  for (float bad : {kInfinity, -kInfinity, std::nanf(""), -std::nanf("")}) {
    for (size_t at : {0, 15, 16, 31, 32, 36}) {
      std::vector<float> values(37, 1.0f);
      values[at] = bad;
      EXPECT_FALSE(FindMax(values).finite) << bad << " at " << at;
    }
  }
}

TEST(FindMax, IgnoresRemovedTokens) {
  const std::vector<float> values = {-kInfinity, -5, -4, -kInfinity};
  EXPECT_EQ(FindMax(values).index, 2);
  EXPECT_EQ(FindMax(values).value, -4);
}

TEST(ExpInPlace, AgreesWithTheExponentialToTwoToTheMinus22) {
  std::vector<float> values;
  for (float z = 0; z > -87.3f; z -= 0.0137f) values.push_back(z);
  std::vector<float> weights = values;
  ExpInPlace(weights, 0, 1);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(weights[i] / std::exp(static_cast<double>(values[i])), 1, 0x1.0p-22) << values[i];
  }
  EXPECT_EQ(weights[0], 1.0f);
}

TEST(ExpInPlace, MakesRemovedAndNegligibleTokensExactlyZero) {
  std::vector<float> weights = {3, -kInfinity, -90, -1e30f};
  ExpInPlace(weights, 3, 1);
  EXPECT_EQ(weights, (std::vector<float>{1, 0, 0, 0}));
  weights = {3, 2.9f, -kInfinity};
  ExpInPlace(weights, 3, std::numeric_limits<float>::max());
  EXPECT_EQ(weights, (std::vector<float>{1, 0, 0}));
}

TEST(Entropy, AgreesWithItsDefinition) {
  std::vector<float> weights = RandomWeights(3000, 5);
  for (size_t i = 0; i < weights.size(); i += 3) weights[i] = 0;
  const double total = SumWeights(weights);
  double entropy = 0;
  for (float w : weights) {
    if (w > 0) entropy -= w / total * std::log(w / total);
  }
  EXPECT_NEAR(Entropy(weights, total), entropy, 1e-5);
}

// Results must be the same bits on all instruction sets, compilers and sanitizers: draft and target may run
// on different machines.
TEST(Weights, AreTheSameBitsOnEveryMachine) {
  uint64_t hash = 0;
  const auto mix = [&](auto value) {
    hash = (hash ^ std::bit_cast<uint64_t>(double{value})) * 0x100000001b3;
  };
  std::vector<float> weights(3000), other(3000);
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = -static_cast<float>(i * i % 90011) / 1024;
    other[i] = static_cast<float>(i * 7919 % 1009) / 64;
  }
  ExpInPlace(weights, 0, 1.25f);
  for (float w : weights) mix(w);
  mix(SumWeights(weights));
  mix(OverlapMass(weights, 0.125, other, 0.001));
  std::vector<double> residual(weights.size());
  ScaleWeights(weights, 0.3, residual);
  SubtractWeights(other, 0.0001, residual);
  for (double r : residual) mix(r);
  mix(SumWeights(residual));
  mix(MassAtLeast(weights, 0.1f).mass);
  EXPECT_EQ(hash, 5835865262451571313u);
}

TEST(OverlapAndSubtract, AddUpToTheFirstDistribution) {
  const std::vector<float> p = RandomWeights(777, 1), q = RandomWeights(777, 2);
  const double scale_p = 1 / SumWeights(p), scale_q = 1 / SumWeights(q);
  std::vector<double> residual(p.size());
  ScaleWeights(p, scale_p, residual);
  SubtractWeights(q, scale_q, residual);
  EXPECT_NEAR(SumWeights(residual) + OverlapMass(p, scale_p, q, scale_q), 1, 1e-14);
}

// What SelectLargest should keep, in the order of the ids.
std::vector<WeightedToken> LargestBySorting(const std::vector<float>& values, size_t k, float least) {
  std::vector<WeightedToken> tokens;
  for (size_t i = 0; i < values.size(); ++i) tokens.push_back({values[i], static_cast<TokenId>(i)});
  std::sort(tokens.begin(), tokens.end(), IsHeavier);
  tokens.resize(std::min(k, tokens.size()));
  std::erase_if(tokens, [&](const WeightedToken& token) { return token.value < least; });
  std::sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return tokens;
}

void ExpectEqualsSorting(const std::vector<float>& values, size_t k, float least = kLeastFinite) {
  const std::vector<WeightedToken> expected = LargestBySorting(values, k, least);
  std::vector<TokenId> ids = {7};  // of the row before
  std::vector<float> kept = {7};
  SelectLargest(values, k, least, ids, kept);
  ASSERT_EQ(ids.size(), expected.size()) << k << " of " << values.size();
  ASSERT_EQ(kept.size(), expected.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    ASSERT_EQ(ids[i], expected[i].id) << k << " of " << values.size();
    ASSERT_EQ(kept[i], expected[i].value);
  }
}

TEST(SelectLargest, EqualsSortingForEveryK) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<float> values(1 + random() % 1200);
    for (float& v : values) v = static_cast<float>(random() % 50);  // many ties
    ExpectEqualsSorting(values, 1 + random() % (values.size() + 5));
  }
}

TEST(SelectLargest, EqualsSortingForLogitsOfEveryVocabulary) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(-1, 2.5f);
  for (int round = 0; round < SomeOf(100); ++round) {
    std::vector<float> values(1 + random() % 20000);
    for (float& v : values) v = normal(random);
    for (const size_t k : {1, 2, 64, 500, 1200}) ExpectEqualsSorting(values, k);
  }
}

TEST(SelectLargest, FindsHeavyTokensThatStandInOneColumn) {
  std::vector<float> values(64 * kWeightBlock);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i % kWeightBlock == 3 ? 1000 + i : i % 100);
  }
  for (const size_t k : {1, 63, 64, 65, 100}) ExpectEqualsSorting(values, k);
}

TEST(SelectLargest, KeepsNothingBelowTheLeast) {
  constexpr float kRemoved = -kInfinity;
  std::vector<float> logits(3000, kRemoved);
  for (const size_t id : {2, 299, 1000, 2999}) logits[id] = -5;
  for (const size_t k : {1, 4, 5, 700, 3000}) ExpectEqualsSorting(logits, k);
  const std::vector<float> weights = {0, 1e-38f, 0, 1, -0.0f};
  for (const size_t k : {1, 2, 3, 5}) {
    ExpectEqualsSorting(weights, k, std::numeric_limits<float>::denorm_min());
  }
}

TEST(SelectLargest, TakesBothZerosForEqual) {
  std::vector<float> values(40, -1);
  for (size_t i = 10; i < 20; ++i) values[i] = i % 2 == 0 ? 0.0f : -0.0f;
  for (size_t k = 1; k < 12; ++k) ExpectEqualsSorting(values, k);
}

TEST(KeepMass, KeepsTheShortestHeaviestPrefixWithEnoughMass) {
  std::mt19937 random(4);
  for (int round = 0; round < 300; ++round) {
    std::vector<float> weights(1 + random() % 1200);
    // Integers: sums are exact in any order, and there are many ties.
    for (float& w : weights) w = static_cast<float>(random() % (round % 2 == 0 ? 9 : 100000));
    weights[0] = 1;
    const double total = SumWeights(weights);
    const double mass = std::floor(total * (0.01 + 0.98 * (random() % 1000) / 1000));
    std::vector<WeightedToken> order;
    for (size_t i = 0; i < weights.size(); ++i) order.push_back({weights[i], static_cast<TokenId>(i)});
    std::sort(order.begin(), order.end(), IsHeavier);
    std::vector<float> expected(weights.size());
    double sum = 0;
    for (const WeightedToken& token : order) {
      expected[token.id] = token.value;
      sum += token.value;
      if (sum >= mass) break;
    }
    MassScratch scratch;
    KeepMass(weights, mass, scratch);
    ASSERT_EQ(weights, expected) << "round " << round << " mass " << mass;
  }
}

}  // namespace
}  // namespace outrider
