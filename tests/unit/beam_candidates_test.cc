// The candidates that the target reports to a beam search, with a real model of random weights.
#include "target_service/rejection_sampler.h"

#include <gmock/gmock.h>

#include <future>
#include <limits>

#include "common/engine/runner.h"
#include "common/engine/worker.h"
#include "common/kv/prefix_hash.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

using ::testing::SizeIs;

struct Reply {
  absl::Status status;
  int num_computed = 0;
  std::vector<CandidateRow> candidates;
  bool has_verdict = false;
};

class CandidatesTest : public ::testing::Test {
 protected:
  CandidatesTest() {
    RunnerOptions load;
    load.model_dir = "tests/data/engine/mha-float32";
    load.dtype = "float32";
    load.threads = 1;
    load.kv_blocks = 64;
    load.block_size = 4;
    worker_ = std::make_unique<Worker>(Runner::Load(load).value(), std::make_unique<RejectionSampler>(),
                                       WorkerOptions{.check_invariants = true}, Worker::Hooks{});
  }

  // Asks for a new round over `tokens`, of which the server already has the first `base`.
  Reply Ask(uint64_t id, const std::vector<TokenId>& tokens, size_t base, VerifyWork work) {
    WorkItem item;
    item.id = {id, id};
    item.round = ++round_;
    item.base = static_cast<uint32_t>(base);
    item.tokens.assign(tokens.begin() + static_cast<ptrdiff_t>(base), tokens.end());
    item.prefix_hash = PrefixHash(std::span(tokens).first(base));
    item.params_hash = 1;
    if (base == 0) {
      auto params = std::make_shared<SequenceParams>();
      params->sampling.temperature = 0.5;
      params->sampling.bad_ids = {tokens.back()};
      item.params = std::move(params);
    }
    item.work = std::move(work);
    std::promise<Reply> reply;
    item.answer = [&reply](const Answer& answer) {
      reply.set_value({answer.status, answer.num_computed, answer.candidates, answer.verdict != nullptr});
    };
    worker_->Submit(std::move(item));
    return reply.get_future().get();
  }

  std::unique_ptr<Worker> worker_;
  uint64_t round_ = 0;
};

// Whether two rows are the same, bit for bit.
bool Same(const CandidateRow& a, const CandidateRow& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.token == y.token && x.log_probability == y.log_probability;
  });
}

TEST_F(CandidatesTest, FollowTheTextAndEachNode) {
  const std::vector<TokenId> text = {5, 42, 79, 116, 153, 190};
  Proposal draft;
  for (const TokenId token : {7, 8, 9}) AppendToChain(token, {}, draft);
  const Reply drafted = Ask(1, text, 0, {.proposal = draft, .candidates = 6});
  ASSERT_TRUE(drafted.status.ok()) << drafted.status;
  EXPECT_FALSE(drafted.has_verdict);
  EXPECT_EQ(drafted.num_computed, 9);
  ASSERT_THAT(drafted.candidates, SizeIs(4));
  std::vector<TokenId> path = text;
  for (size_t i = 0; i < drafted.candidates.size(); ++i) {
    const Reply alone = Ask(2, path, i == 0 ? 0 : path.size() - 1, {.candidates = 6});
    ASSERT_THAT(alone.candidates, SizeIs(1)) << alone.status;
    EXPECT_THAT(drafted.candidates[i], SizeIs(6));
    EXPECT_TRUE(Same(drafted.candidates[i], alone.candidates[0])) << "row " << i;
    if (i < draft.size()) path.push_back(draft[i].token);
  }
  EXPECT_FALSE(Same(drafted.candidates[0], drafted.candidates[1]));
  // The sequence goes on as if nothing had been drafted.
  std::vector<TokenId> other = text;
  other.push_back(11);
  const Reply next = Ask(1, other, 6, {});
  EXPECT_TRUE(next.status.ok()) << next.status;
  EXPECT_TRUE(next.has_verdict);
  EXPECT_EQ(next.num_computed, 7);
}

TEST_F(CandidatesTest, AreThoseBeforeTheControls) {
  const std::vector<TokenId> text = {5, 42, 79};
  const Reply reply = Ask(1, text, 0, {.candidates = 256});
  ASSERT_THAT(reply.candidates, SizeIs(1)) << reply.status;
  ASSERT_THAT(reply.candidates[0], SizeIs(256));
  double sum = 0;
  bool has_banned = false;
  for (const TokenLogProbability& candidate : reply.candidates[0]) {
    sum += std::exp(candidate.log_probability);
    has_banned = has_banned || candidate.token == text.back();
  }
  EXPECT_NEAR(sum, 1, 1e-6);
  EXPECT_TRUE(has_banned);
}

TEST(Candidates, OfARowThatIsNotFiniteThereAreNone) {
  std::vector<float> logits = {0, 1, 2, 3};
  ASSERT_TRUE(Candidates({logits.data(), 2, 2}, 2).ok());
  logits[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(ReasonOf(Candidates({logits.data(), 2, 2}, 2).status()), "LOGITS_NOT_FINITE");
}

}  // namespace
}  // namespace outrider
