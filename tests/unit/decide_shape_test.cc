// The controls on the device, against Controls::Apply.
#include <gtest/gtest.h>

#include <numeric>
#include <utility>

#include "common/spec/team/row_select.h"
#include "tests/unit/decide_cases.h"
#include "tests/unit/some_of.h"

namespace outrider::cuda {
namespace {

constexpr int kSizes[] = {1, 2, 3, 15, 16, 17, 64, 255, 256, 257, 1000, 1024, 1025, 2100, 4096, 5003};

bool ExpectShapedOnTeam(TeamSize size, const std::vector<float>& logits, const SamplingParams& params) {
  return ExpectShapedAsControlsDo(ShapeOnTeam(size, logits, params), logits, params);
}

// Shapes random rows. Returns the number of those where top_p cut at another token.
int ShapeRandomRows(TeamSize size, int rows, uint64_t seed) {
  Generator random(seed);
  int elsewhere = 0;
  for (int i = 0; i < rows && !testing::Test::HasFailure(); ++i) {
    const int vocab = kSizes[Pick(random, std::size(kSizes))];
    const std::vector<float> logits = RandomLogits(random, vocab);
    const SamplingParams params = RandomControls(random, vocab);
    SCOPED_TRACE(testing::Message() << "row " << i << ", vocab " << vocab << ", temperature "
                                    << params.temperature << ", top_k " << params.top_k << ", top_p "
                                    << params.top_p << ", min_p " << params.min_p);
    if (!ExpectShapedOnTeam(size, logits, params)) continue;
    EXPECT_GT(params.top_p, 0.9999999);  // else the bound is too small for rows like these
    ++elsewhere;
  }
  return elsewhere;
}

TEST(DeviceShape, OneThreadHasTheBitsOfControls) {
  const int elsewhere = ShapeRandomRows(1, SomeOf(6000), 1);
  RecordProperty("top_p_cut_elsewhere", elsewhere);
  EXPECT_LT(elsewhere, 60);
}

TEST(DeviceShape, SevenThreadsHaveTheBitsOfControls) { EXPECT_LE(ShapeRandomRows(7, SomeOf(100), 2), 2); }
TEST(DeviceShape, ThirtyTwoThreadsHaveTheBitsOfControls) { EXPECT_LE(ShapeRandomRows(32, 25, 3), 2); }
TEST(DeviceShape, GroupsOfThreadsHaveTheBitsOfControls) {
  EXPECT_LE(ShapeRandomRows({3, 2}, SomeOf(100), 9), 2);
  EXPECT_LE(ShapeRandomRows({4, 8}, 25, 10), 2);
}

// With at least as many threads as tokens to keep, the largest token of each thread bounds the search.
TEST(DeviceShape, FewTokensOfALongRowAreFoundByManyThreads) {
  Generator random(8);
  for (int i = 0; i < 60; ++i) {
    const std::vector<float> logits = RandomLogits(random, 1025 + Pick(random, 2000));
    const TeamSize size = i % 2 == 0 ? TeamSize(7) : TeamSize(7, 3);
    EXPECT_FALSE(ExpectShapedOnTeam(size, logits, Sampling(1, 1 + Pick(random, 7))));
  }
}

TEST(DeviceShape, RowsLongerThanTheSumsThatAreHeldAtATime) {
  Generator random(4);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(kChunkBlocks * kSumBlock + 1000);
  for (float& logit : logits) logit = normal(random);
  for (const double top_p : {1.0, 0.9}) {
    for (const TeamSize size : {TeamSize(4), TeamSize(2, 3)}) {
      EXPECT_FALSE(ExpectShapedOnTeam(size, logits, Sampling(1, top_p < 1 ? 40 : 0, top_p)));
    }
  }
}

TEST(DeviceShape, ALogitThatIsNotFiniteIsFound) {
  Generator random(5);
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
    for (const int vocab : {1, 17, 3000}) {
      std::vector<float> logits = RandomLogits(random, vocab);
      logits[Pick(random, vocab)] = bad;
      for (const double temperature : {0.0, 1.0}) {
        EXPECT_EQ(ShapeOnTeam({3, 2}, logits, Sampling(temperature, 5)).shaped.finite, 0);
      }
    }
  }
}

TEST(DeviceShape, TiesAtTheCutsGoToTheLowestIds) {
  const std::vector<float> logits(3000, 1.5f);
  for (const TeamSize size : {TeamSize(1), TeamSize(7), TeamSize(32), TeamSize(3, 4)}) {
    DeviceRow row = ShapeOnTeam(size, logits, Sampling(1, 20));
    EXPECT_EQ(row.shaped.total, 20);
    EXPECT_EQ(row.weights[19], 1);
    EXPECT_EQ(row.weights[20], 0);
    row = ShapeOnTeam(size, logits, Sampling(1, 0, 0.5));
    EXPECT_EQ(row.shaped.total, 1500);
    EXPECT_EQ(row.weights[1499], 1);
    EXPECT_EQ(row.weights[1500], 0);
    EXPECT_EQ(ShapeOnTeam(size, logits, Sampling(0)).shaped.point_mass, 0);
  }
}

// The row is long enough for histograms over it: the candidates do not fit, or do not hold the mass.
TEST(DeviceShape, FlatRowsAreCutToo) {
  Generator random(6);
  std::vector<float> logits(9000);
  std::normal_distribution<float> normal(0, 0.3f);
  for (float& logit : logits) logit = normal(random);
  for (const TeamSize size : {TeamSize(1), TeamSize(5), TeamSize(2, 3)}) {
    for (const double top_p : {0.2, 0.9, 0.9999}) {
      EXPECT_FALSE(ExpectShapedOnTeam(size, logits, Sampling(1, 0, top_p)));
      EXPECT_FALSE(ExpectShapedOnTeam(size, logits, Sampling(1, 4000, top_p)));
    }
  }
}

TEST(DeviceShape, NoEntropyUnlessItIsWanted) {
  std::vector<float> row = {1, 2, 3};
  ShapedRow shaped;
  OnTeam(1, [&](HostTeam& team) {
    ShapeRow(team, row.data(), 3, ToShapeParams({}, false).controls, false, &shaped);
  });
  EXPECT_EQ(shaped.entropy, 0);
  EXPECT_GT(shaped.total, 1);
}

TEST(DeviceSums, TheOrderOfASumShows) {
  // A negative control for the agreement with SumWeights: the same numbers added from left to right, and in
  // blocks of another size, give other bits.
  Generator random(7);
  int left_to_right = 0;
  for (int i = 0; i < 50; ++i) {
    std::vector<float> weights(2000);
    for (float& weight : weights) weight = std::exp(std::normal_distribution<float>(0, 9)(random));
    double in_order = 0;
    for (const float weight : weights) in_order += weight;
    double sum = 0;
    OnTeam(3, [&](HostTeam& team) {
      const double result = SumRow(team, FloatRow{weights.data()}, 2000);
      if (team.rank() == 0) sum = result;
    });
    EXPECT_EQ(sum, SumWeights(weights));
    left_to_right += sum != in_order;
  }
  EXPECT_GT(left_to_right, 5);
}

// Most additions make the low half wrap around.
TEST(DeviceSelect, ASumOfManyThreadsIsExact) {
  for (const int threads : {1, 2, 7, 32}) {
    std::vector<uint64_t> expected(threads);
    uint64_t found = 0;
    OnTeam(threads, [&](HostTeam& team) {
      WideSum* const sum = &team.scratch().histogram[3];
      if (team.rank() == 0) *sum = {};
      team.Sync();
      Generator random(100 + team.rank());
      for (int i = 0; i < 2000; ++i) {
        const uint64_t n = random() % (uint64_t{1} << 44) | 0xffff0000u;
        expected[team.rank()] += n;
        AddWide(team, sum, n);
      }
      team.Sync();
      if (team.rank() == 0) found = sum->Value();
    });
    EXPECT_EQ(found, std::accumulate(expected.begin(), expected.end(), uint64_t{0}));
  }
}

TEST(DeviceSelect, KeysAreOrderedAsTokensArePreferred) {
  const float values[] = {-3e38f, -1, -1e-40f, -0.0f, 0.0f, 1e-40f, 1, 1.5f, 3e38f};
  for (size_t i = 0; i + 1 < std::size(values); ++i) {
    if (values[i] < values[i + 1]) {
      EXPECT_LT(KeyOf(values[i], 0), KeyOf(values[i + 1], 9));
    } else {
      EXPECT_GT(KeyOf(values[i], 0), KeyOf(values[i + 1], 9));
    }
    EXPECT_EQ(ValueOf(KeyOf(values[i], 77)), values[i]);
    EXPECT_EQ(IdOf(KeyOf(values[i], 77)), 77);
  }
}

}  // namespace
}  // namespace outrider::cuda
