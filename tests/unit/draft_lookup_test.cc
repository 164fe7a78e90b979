// A draft that speculates itself, with tokens looked up in the text.
#include "draft_service/lookup.h"

#include <gmock/gmock.h>

#include "common/engine/backend.h"
#include "draft_service/draft_sampler.h"
#include "host_device_model.h"
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
    const auto worker =
        Start({}, std::make_unique<DraftSampler>(DraftOptions{.lookup_tokens = lookup_tokens}));
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

TEST_F(DraftLookupTest, MasksStandForTokensThatAreNotDrawnYet) {
  constexpr TokenId kMask = 3;
  const std::vector<TokenId> text = {1, 5, 2, 7, 4};
  const auto params = std::make_shared<SequenceParams>(SequenceParams{.prompt_length = 5, .draft_top_n = 8});
  const auto propose = [&](const DraftOptions& options, const std::vector<TokenId>& after, int tokens) {
    steps_ = 0;
    const auto worker = Start({}, std::make_unique<DraftSampler>(options));
    return testing::AskTree(*worker,
                            testing::TreeItem(1, 1, after, 0, params, ProposeWork{.draft_tokens = tokens}));
  };
  const DraftOptions parallel{.parallel_tokens = 3, .mask = kMask};
  const testing::TreeReply reply = propose(parallel, text, 3);
  EXPECT_EQ(steps_, 1);
  ASSERT_EQ(reply.proposal.size(), 3u);
  EXPECT_EQ(reply.num_computed, static_cast<int>(text.size())) << "keys and values of masks are of no use";
  std::vector<TokenId> masked = text;
  for (size_t i = 0; i < 3; ++i) {
    const testing::TreeReply one = propose({}, masked, 1);
    EXPECT_EQ(reply.proposal[i].q.weights, one.proposal[0].q.weights) << i;
    masked.push_back(kMask);
  }
  // More tokens than one pass drafts: the next pass follows those of the first.
  const testing::TreeReply longer = propose(parallel, text, 5);
  EXPECT_EQ(steps_, 2);
  ASSERT_EQ(longer.proposal.size(), 5u);
  std::vector<TokenId> drawn = text;
  for (size_t i = 0; i < 3; ++i) drawn.push_back(longer.proposal[i].token);
  const testing::TreeReply rest = propose(parallel, drawn, 2);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(longer.proposal[3 + i].q.weights, rest.proposal[i].q.weights) << i;
}

// A device drafts all tokens of an item in one step, which must be its first.
TEST_F(DraftLookupTest, ADeviceDoesNotDraftTheRestOfAProposal) {
  const std::vector<TokenId> text = {1, 5, 2, 7, 4};
  const testing::HostDevice device(/*team=*/1);
  const auto propose = [&](const Backend& backend) {
    const auto worker =
        Start({}, std::make_unique<DraftSampler>(DraftOptions{.parallel_tokens = 2, .mask = 3}), backend);
    return testing::AskTree(*worker,
                            testing::TreeItem(1, 1, text, 0, greedy_, ProposeWork{.draft_tokens = 3}));
  };
  const testing::TreeReply reply = propose(device), expected = propose(**BackendFor("native", "cpu"));
  ASSERT_EQ(expected.proposal.size(), 3u);
  EXPECT_EQ(reply.proposal.size(), 3u);
  EXPECT_TRUE(testing::BeginsWith(expected.proposal, reply.proposal));
}

}  // namespace
}  // namespace outrider
