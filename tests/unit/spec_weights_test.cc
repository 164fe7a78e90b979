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

namespace outrider {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kAlmostOne = 1 - 0x1.0p-53;

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
  EXPECT_EQ(sample(kAlmostOne), 4u);
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
    EXPECT_GT(weights[SampleIndex(weights, total, kAlmostOne)], 0);
    EXPECT_GT(weights[SampleIndex(weights, total * (1 + 1e-12), kAlmostOne)], 0);
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

TEST(SelectLargest, EqualsSortingForEveryK) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<float> values(1 + random() % 1200);
    for (float& v : values) v = static_cast<float>(random() % 50);  // many ties
    std::vector<WeightedToken> expected;
    for (size_t i = 0; i < values.size(); ++i) expected.push_back({values[i], static_cast<TokenId>(i)});
    std::sort(expected.begin(), expected.end(), Heavier);
    const size_t k = 1 + random() % (values.size() + 5);
    std::vector<WeightedToken> kept;
    SelectLargest(values, k, kept);
    std::sort(kept.begin(), kept.end(), Heavier);
    ASSERT_EQ(kept.size(), std::min(k, values.size()));
    for (size_t i = 0; i < kept.size(); ++i) ASSERT_EQ(kept[i].id, expected[i].id) << k;
  }
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
    std::sort(order.begin(), order.end(), Heavier);
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
