// What a draft would have proposed in place of a token (Alternatives of common/spec/verify.h).
#include <gmock/gmock.h>

#include <limits>

#include "common/spec/verify.h"
#include "tests/unit/spec_testing.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr RandomKey kKey = {.seed = 5, .sample_index = 6};

TEST(Alternatives, AreTheHeaviestTokensLowestIdsFirst) {
  const TestRow row{1, 3, 0, 2, 3, 1};
  EXPECT_THAT(Alternatives(Rule::kToken, row, kKey, 7, 3, 3), ElementsAre(1, 4, 0));
  EXPECT_THAT(Alternatives(Rule::kBlock, row, kKey, 7, 1, 2), ElementsAre(4, 3));
  EXPECT_THAT(Alternatives(Rule::kToken, row, kKey, 7, 1, 9), ElementsAre(4, 3, 0, 5)) << "there are no more";
  EXPECT_THAT(Alternatives(Rule::kToken, row, kKey, 7, 1, 0), IsEmpty());
}

TEST(Alternatives, OfAGreedyChoiceAreTheNextLogitsThatAreNotForbidden) {
  const float forbidden = -std::numeric_limits<float>::infinity();
  const std::vector<float> logits = {-1, 4, forbidden, 2, 4};
  const WeightRow row = {.weights = {}, .point_mass = 1, .logits = logits};
  for (const Rule rule : {Rule::kToken, Rule::kCoupled}) {
    EXPECT_THAT(Alternatives(rule, row, kKey, 7, 1, 2), ElementsAre(4, 3));
    EXPECT_THAT(Alternatives(rule, row, kKey, 7, 1, 9), ElementsAre(4, 3, 0));
  }
}

// The token that comes second wins if the first is left out.
TEST(Alternatives, OfTheCoupledRuleComeInTheOrderOfTheRace) {
  const std::vector<float> weights = {1, 2, 0, 1.5, 1, 3, 0.25, 2, 1, 0.5, 4};
  for (uint64_t position = 0; position < 100; ++position) {
    const TokenId winner = Race(TestRow(weights), kKey, position);
    const std::vector<TokenId> order =
        Alternatives(Rule::kCoupled, TestRow(weights), kKey, position, winner, 5);
    ASSERT_EQ(order.size(), 5u);
    std::vector<float> left = weights;
    left[static_cast<size_t>(winner)] = 0;
    for (const TokenId next : order) {
      ASSERT_EQ(next, Race(TestRow(left), kKey, position));
      left[static_cast<size_t>(next)] = 0;
    }
  }
  EXPECT_THAT(Alternatives(Rule::kCoupled, TestRow(weights), kKey, 0, 1, 20), ::testing::SizeIs(9));
}

}  // namespace
}  // namespace outrider
