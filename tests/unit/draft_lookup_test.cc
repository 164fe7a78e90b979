// A draft that speculates itself, with tokens looked up in the text.
#include "draft_service/lookup.h"

#include <gmock/gmock.h>

#include "draft_service/draft_sampler.h"
#include "worker_trees_testing.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(LookUp, TheLongestSuffixThatRepeatsDecides) {
  EXPECT_THAT(LookUp(std::vector<TokenId>{1, 2, 3, 4, 5, 9, 2, 3, 6, 1, 2, 3}, 4), ElementsAre(4, 5, 9));
  EXPECT_THAT(LookUp(std::vector<TokenId>{9, 2, 3, 4, 9, 2, 3, 5, 2, 3}, 1), ElementsAre(5))
      << "the most recent";
}

TEST(LookUp, AGuessIsNoLongerThanTheSuffixOrTheLimit) {
  const std::vector<TokenId> text = {1, 2, 3, 4, 5, 6, 7, 1, 2};
  EXPECT_THAT(LookUp(text, 9), ElementsAre(3, 4));
  EXPECT_THAT(LookUp(text, 1), ElementsAre(3));
  EXPECT_THAT(LookUp(text, 0), IsEmpty());
  EXPECT_THAT(LookUp(text, -1), IsEmpty());
  EXPECT_THAT(LookUp(std::vector<TokenId>{7, 7, 7}, 9), ElementsAre(7, 7)) << "beyond the end of the text";
  EXPECT_THAT(LookUp(std::vector<TokenId>{1, 2, 1, 2, 1, 2, 1}, 9), ElementsAre(2, 1, 2, 1, 2));
}

TEST(LookUp, OneTokenIsNoReasonForAGuess) {
  EXPECT_THAT(LookUp(std::vector<TokenId>{1, 2, 3, 1}, 9), IsEmpty());
  EXPECT_THAT(LookUp(std::vector<TokenId>{1, 2, 3, 4}, 9), IsEmpty());
  EXPECT_THAT(LookUp(std::vector<TokenId>{1}, 9), IsEmpty());
  EXPECT_THAT(LookUp({}, 9), IsEmpty());
}

using DraftLookupTest = testing::WorkerTreesTest;

TEST_F(DraftLookupTest, RightGuessesSaveSteps) {
  SequenceParams params{.prompt_length = 4, .draft_top_n = 8};
  params.sampling.allowed_ids = {7};  // so every guess at the text below is right
  const std::vector<TokenId> text(10, 7);
  const auto propose = [&](int lookup_tokens) {
    steps_ = 0;
    const auto worker = Start({}, std::make_unique<DraftSampler>(lookup_tokens));
    return testing::AskTree(*worker,
                            testing::TreeItem(1, 1, text, 0, std::make_shared<SequenceParams>(params),
                                              ProposeWork{.draft_tokens = 6}));
  };
  const testing::TreeReply expected = propose(0);
  EXPECT_EQ(steps_, 6);
  for (const auto& [lookup_tokens, steps] : {std::pair(1, 3), {2, 2}, {3, 2}, {8, 1}}) {
    const testing::TreeReply reply = propose(lookup_tokens);
    EXPECT_EQ(steps_, steps) << lookup_tokens;
    EXPECT_EQ(reply.proposal.size(), 6u);
    EXPECT_TRUE(testing::BeginsWith(expected.proposal, reply.proposal));
    EXPECT_EQ(reply.num_computed, expected.num_computed);
  }
}

}  // namespace
}  // namespace outrider
