#include "bench/token_rows.h"

#include <gmock/gmock.h>

namespace outrider {
namespace {

using ::testing::ElementsAre;

using Form = Distribution::Form;

// Token 1 in half of the positions, always followed by 2 or, a third as often, by 3.
const CorpusCounts& Counts() {
  static const auto& counts = *new CorpusCounts(std::vector<TokenId>{1, 2, 1, 2, 1, 2, 1, 3}, 5);
  return counts;
}

std::vector<float> Bigrams(size_t /*position*/, TokenId previous) { return Counts().Bigrams(previous); }

TEST(CorpusCounts, CountTokensAndWhatFollowsThem) {
  EXPECT_THAT(Counts().Unigrams(), ElementsAre(0, 4, 3, 1, 0));
  EXPECT_THAT(Counts().Bigrams(1), ElementsAre(0, 0, 3, 1, 0));
  EXPECT_EQ(Counts().Bigrams(4), Counts().Unigrams()) << "never seen";
}

TEST(DraftFromRows, DrawsEachTokenAsOftenAsItsDistributionSays) {
  constexpr int kDraws = 4'000;
  std::map<TokenId, double> share;
  for (uint64_t seed = 0; seed < kDraws; ++seed) {
    const Proposal proposal = DraftFromRows(Bigrams, std::vector<TokenId>{1}, 2, {seed, 0}, false);
    ASSERT_TRUE(IsChain(proposal) && proposal.size() == 2);
    EXPECT_EQ(proposal[0].q(2), 0.75);
    EXPECT_EQ(proposal[0].q(3), 0.25);
    share[proposal[0].token] += 1.0 / kDraws;
  }
  // Four standard deviations.
  EXPECT_NEAR(share[2], 0.75, 0.03);
  EXPECT_NEAR(share[3], 0.25, 0.03);
}

TEST(DraftFromRows, GreedilyTakesTheHeaviest) {
  std::vector<TokenId> tokens;
  for (const ProposalNode& node : DraftFromRows(Bigrams, std::vector<TokenId>{1}, 3, {}, true)) {
    EXPECT_EQ(node.q.form, Form::kPointMass);
    tokens.push_back(node.token);
  }
  EXPECT_THAT(tokens, ElementsAre(2, 1, 2));
}

TEST(RandomRow, DependsOnThePositionOnly) {
  EXPECT_EQ(RandomRow(3, 300), RandomRow(3, 300));
  EXPECT_NE(RandomRow(3, 300), RandomRow(4, 300));
  for (float weight : RandomRow(3, 300)) EXPECT_TRUE(weight > 0 && weight <= 1);
}

}  // namespace
}  // namespace outrider
