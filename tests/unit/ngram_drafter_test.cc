// Drafts from the n-grams of a text.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "coordinator/decode/drafters/local_drafters.h"
#include "tests/unit/drafter_testing.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Form = Distribution::Form;

Tokens Ngram(const Tokens& committed, int k = 1, const NgramOptions& options = {}) {
  Generation generation = GenerationAfter(committed);
  return TokensOf(NgramDrafter(&generation, options).Draft(k));
}

TEST(NgramDrafter, ProposesTheMostFrequentContinuation) {
  EXPECT_THAT(Ngram({5, 1, 5, 2, 5, 1, 6, 5}), ElementsAre(1));
  EXPECT_THAT(Ngram({5, 1, 5, 2, 5, 1, 5, 2, 5, 2, 6, 5}), ElementsAre(2));
}

TEST(NgramDrafter, OfContinuationsThatTieTheMostRecentWins) {
  EXPECT_THAT(Ngram({5, 1, 6, 5, 2, 7, 5}), ElementsAre(2));
  EXPECT_THAT(Ngram({5, 2, 6, 5, 1, 7, 5}), ElementsAre(1));
}

TEST(NgramDrafter, TheLongestContextDecides) {
  EXPECT_THAT(Ngram({1, 2, 3, 9, 7, 3, 8, 5, 3, 8, 1, 2, 3}), ElementsAre(9));
  EXPECT_THAT(Ngram({1, 2, 3, 9, 7, 3, 8, 5, 3, 8, 4, 2, 3}), ElementsAre(9));
  EXPECT_THAT(Ngram({1, 2, 3, 9, 7, 3, 8, 5, 3, 8, 4, 4, 3}), ElementsAre(8));
  EXPECT_THAT(Ngram({1, 2, 3, 9, 7, 3, 8, 5, 3, 8, 1, 2, 3}, 1, {.max_context = 1}), ElementsAre(8));
}

TEST(NgramDrafter, ChainsFromTokenToTokenUpToItsLimitAndTheRounds) {
  const Tokens committed = {1, 2, 3, 4, 5, 6, 1};
  EXPECT_THAT(Ngram(committed, 2), ElementsAre(2, 3));
  EXPECT_THAT(Ngram(committed, 8), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(Ngram(committed, 8, {.max_tokens = 6}), ElementsAre(2, 3, 4, 5, 6, 1));
  EXPECT_THAT(Ngram(committed, 0), IsEmpty());
}

TEST(NgramDrafter, ProposesNothingWithoutAMatch) {
  EXPECT_THAT(Ngram({1}, 4), IsEmpty());
  EXPECT_THAT(Ngram({1, 2, 3}, 4), IsEmpty());
  EXPECT_THAT(Ngram({1, 2, 3, 1, 2}, 4, {.min_context = 3}), IsEmpty());
  EXPECT_THAT(Ngram({1, 2, 3, 4, 1, 2, 3}, 4, {.min_context = 3}), ElementsAre(4, 1, 2, 3));
}

TEST(NgramDrafter, OnlyCommittedTokensCount) {
  Generation generation = GenerationAfter({1, 2, 3, 1});
  NgramDrafter drafter(&generation, {});
  for (TokenId token : {3, 1, 3, 1, 2, 1}) {
    const Proposal proposal = drafter.Draft(4);
    EXPECT_FALSE(proposal.empty());
    Reject(generation, proposal, token);
  }
  NgramDrafter fresh(&generation, {});
  EXPECT_EQ(TokensOf(drafter.Draft(4)), TokensOf(fresh.Draft(4)));
  EXPECT_EQ(drafter.table().size(), fresh.table().size());
}

TEST(NgramDrafter, LearnsWhatIsCommitted) {
  Generation generation = GenerationAfter({1, 2, 3});
  NgramDrafter drafter(&generation, {});
  EXPECT_THAT(TokensOf(drafter.Draft(4)), IsEmpty());
  Reject(generation, {}, 1);
  EXPECT_THAT(TokensOf(drafter.Draft(1)), ElementsAre(2));
}

TEST(NgramDrafter, ALongPromptCountsAsAWhole) {
  Tokens committed = {8, 9, 8, 9};
  const Tokens rest = RandomTokens(5'000, 7);
  committed.insert(committed.end(), rest.begin(), rest.end());
  committed.push_back(8);
  Generation generation = GenerationAfter(committed);
  NgramDrafter drafter(&generation, {});
  for (int round = 0; round < 3; ++round) EXPECT_THAT(TokensOf(drafter.Draft(1)), ElementsAre(9));
  const size_t read = drafter.table().size();
  drafter.Draft(1);
  EXPECT_EQ(drafter.table().size(), read) << "the prompt has been read";
}

// Where the target samples, the drafter draws its tokens from q.
TEST(NgramDrafter, DrawsWhereTheTargetDoes) {
  constexpr int kSamples = 4'000;
  // 5 was followed three times by 1 and once by 2; "6 5" was followed by 2.
  const Tokens committed = {5, 1, 5, 1, 5, 1, 6, 5, 2, 6, 5};
  std::map<TokenId, int> drawn;
  Distribution q;
  for (uint64_t seed = 0; seed < kSamples; ++seed) {
    Generation generation = GenerationAfter(committed, v1::RULE_TOKEN, seed);
    const Proposal proposal = NgramDrafter(&generation, {.max_context = 2}).Draft(1);
    ASSERT_EQ(proposal.size(), 1u);
    q = proposal[0].q;
    ++drawn[proposal[0].token];
  }
  ASSERT_EQ(q.form, Form::kSparse);
  EXPECT_THAT(q.ids, ElementsAre(1, 2));
  // "6 5" has one continuation, seen once, so that "5" has half of the weight.
  EXPECT_NEAR(q(1), 0.5 * 3 / 4, 1e-6);
  EXPECT_NEAR(q(2), 0.5 + 0.5 / 4, 1e-6);
  for (const TokenId token : {1, 2}) {
    EXPECT_NEAR(drawn[token] / double{kSamples}, q(token), 5 * std::sqrt(q(1) * q(2) / kSamples)) << token;
  }
  Generation coupled = GenerationAfter(committed, v1::RULE_COUPLED);
  const Proposal proposal = NgramDrafter(&coupled, {.max_context = 2}).Draft(1);
  EXPECT_EQ(proposal[0].q.form, Form::kAbsent);
  EXPECT_EQ(proposal[0].token, 2);
}

TEST(NgramTable, ALawHasTheLikeliestTokens) {
  NgramTable table(1);
  for (const TokenId next : {3, 4}) {
    for (const TokenId token : {1, next}) table.Append(token);
  }
  for (TokenId token = 10; token < 90; ++token) {
    for (int i = 0; i < token; ++i) {
      table.Append(2);
      table.Append(token);
    }
  }
  EXPECT_EQ(table.Law({{7}}).form, Form::kAbsent);
  EXPECT_EQ(table.Law({{1}}, 2).form, Form::kAbsent);
  EXPECT_THAT(table.Law({{1}}).ids, ElementsAre(3, 4));
  const Distribution q = table.Law({{2}});
  EXPECT_THAT(q.ids, SizeIs(NgramTable::kMostLikely));
  EXPECT_EQ(q.ids.front(), 90 - static_cast<TokenId>(NgramTable::kMostLikely));
  EXPECT_DOUBLE_EQ(q.total, SumWeights(q.weights));
}

// The token has more continuations than the table looks through.
TEST(NgramTable, KnowsTheLikeliestOfMany) {
  NgramTable table(1);
  std::map<TokenId, std::pair<int, size_t>> followed;  // the tokens after 1: how often, and when last
  const Tokens tokens = RandomTokens(4'000, 150);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const TokenId token = 2 + tokens[i] * tokens[tokens.size() - 1 - i] % 150;  // some are more frequent
    table.Append(1);
    table.Append(token);
    followed[token] = {followed[token].first + 1, i};
    std::vector<std::pair<std::pair<int, size_t>, TokenId>> ranked;
    for (const auto& [other, rank] : followed) ranked.emplace_back(rank, other);
    std::ranges::sort(ranked, std::greater<>());
    ASSERT_EQ(table.Next({{1}}), ranked[0].second);
    ranked.resize(std::min(ranked.size(), NgramTable::kMostLikely));
    const Distribution q = table.Law({{1}});
    ASSERT_EQ(q.ids.size(), ranked.size());
    if (q.form == Form::kPointMass) continue;
    for (const auto& [rank, other] : ranked) {
      ASSERT_NEAR(q(other) * q.total * static_cast<double>(i + 1), rank.first, 1e-3);
    }
  }
  EXPECT_GT(followed.size(), 2 * NgramTable::kMostLikely);
  EXPECT_EQ(table.size(), 2 * followed.size());
}

// A client decides how many different tokens follow one. The time must not grow as the text's square.
TEST(NgramTable, TakesAsMuchForATextInWhichAllTokensFollowOne) {
  NgramTable table(3);
  for (TokenId token = 10; token < 300'000; ++token) {
    table.Append(1);
    table.Append(token);
  }
  EXPECT_EQ(table.Next({{1}}), 299'999);
  EXPECT_THAT(table.Law({{1}}).ids, SizeIs(NgramTable::kMostLikely));
}

}  // namespace
}  // namespace outrider
