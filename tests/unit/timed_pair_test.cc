#include "bench/timed_pair.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace outrider {
namespace {

constexpr int kPositions = 20000;
constexpr double kNear = 0.02;  // five standard deviations of a share of kPositions

// Shares of the target's tokens in rows that follow `accepted` drafted tokens.
struct Shares {
  double first = 0, second = 0, other = 0;
};

Shares SharesAfter(const TimedLaw& law, size_t accepted, bool judges) {
  Shares shares;
  for (int position = 1; position <= kPositions; ++position) {
    const TimedChoices choices(position);
    const TokenId token = choices.Target(law, accepted, judges);
    (token == choices.first()    ? shares.first
     : token == choices.second() ? shares.second
                                 : shares.other) += 1.0 / kPositions;
  }
  return shares;
}

TEST(TimedPair, ADraftedTokenIsAcceptedWithAlphaWhateverTheHits) {
  for (double hits : {0.0, .7, 1.0}) {
    EXPECT_NEAR(SharesAfter({.8, {hits}}, 0, true).first, .8, kNear);
  }
}

TEST(TimedPair, ACorrectionIsTheSecondChoiceAsOftenAsTheHitsSay) {
  const TimedLaw law = {.8, {.7, .25}};
  EXPECT_NEAR(SharesAfter(law, 0, true).second, .2 * .7, kNear);
  EXPECT_NEAR(SharesAfter(law, 1, true).second, .2 * .25, kNear);
  EXPECT_NEAR(SharesAfter(law, 5, true).second, .2 * .25, kNear) << "the last entry counts";
}

TEST(TimedPair, TheLastRowsTokenIsTheFirstChoiceAsOftenAsTheHitsSay) {
  for (double hits : {0.0, .3, 1.0}) {
    const Shares shares = SharesAfter({.8, {hits}}, 2, false);
    EXPECT_NEAR(shares.first, hits, kNear);
    EXPECT_EQ(shares.second, 0);
  }
}

// Greedy tokens of a forward pass over one sequence.
std::vector<TokenId> Greedy(bool is_draft, const TimedLaw& law, int position, int rows) {
  const std::atomic<const TimedLaw*> current = &law;
  DecoderConfig spec;
  spec.vocab_size = 4096;
  TimedModel model({.is_draft = is_draft, .law = &current}, spec, {});
  const std::vector<TokenId> tokens(static_cast<size_t>(rows), 1);
  const SequenceRows sequence{.tokens = tokens, .position = position, .blocks = {}, .logit_rows = rows};
  const auto logits = model.Forward({&sequence, 1}, {});
  std::vector<TokenId> greedy;
  for (int r = 0; r < rows; ++r) {
    const auto row = logits->row(r);
    greedy.push_back(static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin()));
  }
  return greedy;
}

TEST(TimedPair, TheTargetSaysWhatTheDraftSaysWhereTheyAlwaysAgree) {
  const TimedLaw always = {1, {1}};
  EXPECT_EQ(Greedy(false, always, 7, 4), Greedy(true, always, 7, 4));
  const std::vector<TokenId> later = Greedy(true, always, 9, 1);
  EXPECT_EQ(Greedy(true, always, 7, 4)[2], later[0])
      << "the choice of a position does not depend on the batch";
}

TEST(TimedPair, OnlyTheLastRowGoesByTheHitsAlone) {
  const TimedLaw law = {1, {0}};
  const std::vector<TokenId> target = Greedy(false, law, 7, 4), draft = Greedy(true, law, 7, 4);
  EXPECT_EQ(std::vector(target.begin(), target.end() - 1), std::vector(draft.begin(), draft.end() - 1));
  EXPECT_NE(target.back(), draft.back());
}

}  // namespace
}  // namespace outrider
