// The engine's worker with a real model of random weights, used as a target and as a draft.
#include "common/engine/worker.h"

#include <gmock/gmock.h>

#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <numeric>
#include <random>

#include "common/kv/prefix_hash.h"
#include "common/spec/status.h"
#include "draft_service/draft_sampler.h"
#include "host_device_model.h"
#include "target_service/rejection_sampler.h"
#include "tests/unit/store_testing.h"

namespace outrider {
namespace {

using testing::Id;

constexpr char kModel[] = "tests/data/engine/mha-float32";
constexpr int kContext = 512;

struct Reply {
  absl::Status status;
  int num_computed = 0;
  std::vector<TokenId> proposal;
  Proposal draft;
  std::optional<Verdict> verdict;
  int prefix_hit = 0;
};

std::vector<TokenId> Tokens(int n, int salt = 0) {
  std::vector<TokenId> tokens(n);
  for (int i = 0; i < n; ++i) tokens[i] = (i * 37 + salt * 11 + 5) % 256;
  return tokens;
}

std::shared_ptr<SequenceParams> Params(double temperature, uint64_t seed = 1) {
  auto params = std::make_shared<SequenceParams>();
  params->sampling.temperature = temperature;
  params->key.seed = seed;
  params->prompt_length = 4;
  params->draft_top_n = 64;
  return params;
}

Proposal& ProposalOf(WorkItem& item) { return std::get<VerifyWork>(item.work).proposal; }

// Appends a token that was not sampled to a proposal.
void Guess(TokenId token, Proposal& proposal) {
  AppendToChain(token, {Distribution::Form::kPointMass, {token}, {}, 1}, proposal);
}

// An item for the tokens from `base` on.
WorkItem Item(uint64_t id, uint64_t round, const std::vector<TokenId>& all, int base,
              double temperature = 0) {
  WorkItem item;
  item.id = Id(id);
  item.round = round;
  item.base = static_cast<uint32_t>(base);
  item.tokens.assign(all.begin() + base, all.end());
  item.prefix_hash = PrefixHash(std::span(all).first(base));
  item.params_hash = static_cast<uint64_t>(temperature * 100) + 1;
  if (base == 0) item.params = Params(temperature);
  item.work = VerifyWork{};
  return item;
}

// Parameterised by whether the model runs device tasks or leaves its logits to the host.
class WorkerTest : public ::testing::TestWithParam<bool> {
 protected:
  struct Options {
    int kv_blocks = 256;
    int max_batch_rows = 64;
    int max_sequences = 64;
    absl::Duration lease = absl::Seconds(60);
    absl::Duration abandoned_after = absl::Seconds(1);
  };

  std::unique_ptr<Worker> Start(std::unique_ptr<Sampler> sampler, const Options& options) {
    RunnerOptions load;
    load.model_dir = kModel;
    load.dtype = "float32";
    load.threads = 1;
    load.kv_blocks = options.kv_blocks;
    load.block_size = 4;
    load.max_batch_rows = options.max_batch_rows;
    absl::StatusOr<std::unique_ptr<Runner>> runner =
        GetParam() ? Runner::Load(load, testing::HostDevice(/*team=*/1)) : Runner::Load(load);
    EXPECT_TRUE(runner.ok()) << runner.status();
    return std::make_unique<Worker>(*std::move(runner), std::move(sampler),
                                    WorkerOptions{.max_batch_rows = options.max_batch_rows,
                                                  .sequences = {.max_sequences = options.max_sequences,
                                                                .lease = options.lease,
                                                                .abandoned_after = options.abandoned_after},
                                                  .check_invariants = true},
                                    Worker::Hooks{[this](const StepStats& step) {
                                                    absl::SleepFor(step_takes_longer_);
                                                    std::lock_guard lock(mutex_);
                                                    largest_batch_ = std::max(largest_batch_, step.sequences);
                                                    most_rows_ = std::max(most_rows_, step.rows);
                                                    rows_ += step.rows;
                                                  },
                                                  [this](const SequenceStoreCounts& state) {
                                                    std::lock_guard lock(mutex_);
                                                    state_ = state;
                                                    reported_.notify_all();
                                                  }});
  }
  std::unique_ptr<Worker> Target(const Options& options) {
    return Start(std::make_unique<RejectionSampler>(), options);
  }
  std::unique_ptr<Worker> Target() { return Target(Options()); }
  std::unique_ptr<Worker> Draft() { return Start(std::make_unique<DraftSampler>(), Options()); }

  static std::future<Reply> Send(Worker& worker, WorkItem item) {
    auto promise = std::make_shared<std::promise<Reply>>();
    item.answer = [promise](const Answer& answer) {
      Reply reply{answer.status, answer.num_computed, {}, answer.proposal, std::nullopt, answer.prefix_hit};
      for (const ProposalNode& token : answer.proposal) reply.proposal.push_back(token.token);
      if (answer.verdict != nullptr) reply.verdict = *answer.verdict;
      promise->set_value(std::move(reply));
    };
    worker.Submit(std::move(item));
    return promise->get_future();
  }
  static Reply Ask(Worker& worker, WorkItem item) { return Send(worker, std::move(item)).get(); }

  // Plain greedy continuation.
  std::vector<TokenId> Decode(Worker& worker, uint64_t id, std::vector<TokenId> tokens, int count) {
    int cached = 0;
    for (int i = 0; i < count; ++i) {
      const Reply reply = Ask(worker, Item(id, i + 1, tokens, cached));
      EXPECT_TRUE(reply.status.ok()) << reply.status;
      if (!reply.status.ok()) return tokens;
      cached = reply.num_computed;
      tokens.push_back(reply.verdict->token);
    }
    return tokens;
  }

  SequenceStoreCounts WaitFor(const std::function<bool(const SequenceStoreCounts&)>& condition) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(reported_.wait_for(lock, std::chrono::seconds(30), [&] { return condition(state_); }));
    return state_;
  }

  absl::Duration step_takes_longer_;  // set before a worker is started
  std::mutex mutex_;                  // guards the fields below
  std::condition_variable reported_;
  SequenceStoreCounts state_;
  int largest_batch_ = 0;
  int most_rows_ = 0;
  int rows_ = 0;
};

TEST_P(WorkerTest, VerifyingTheTargetsOwnChoicesAcceptsThemAll) {
  auto worker = Target();
  const std::vector<TokenId> prompt = Tokens(9);
  const std::vector<TokenId> plain = Decode(*worker, 1, prompt, 6);

  WorkItem item = Item(2, 1, prompt, 0);
  for (int i = 9; i < 13; ++i) Guess(plain[i], ProposalOf(item));
  const Reply reply = Ask(*worker, std::move(item));
  ASSERT_TRUE(reply.status.ok()) << reply.status;
  EXPECT_EQ(reply.verdict->path.size(), 4);
  EXPECT_EQ(reply.verdict->token, plain[13]);
  EXPECT_EQ(reply.verdict->kind, Verdict::Kind::kBonus);
  EXPECT_EQ(reply.num_computed, 13);
}

TEST_P(WorkerTest, ARejectedDraftIsTruncatedFromTheCacheAndLeavesNoTrace) {
  auto worker = Target();
  const std::vector<TokenId> prompt = Tokens(9);
  const std::vector<TokenId> plain = Decode(*worker, 1, prompt, 8);

  std::vector<TokenId> tokens = prompt;
  int cached = 0;
  for (uint64_t round = 1; tokens.size() < plain.size(); ++round) {
    WorkItem item = Item(2, round, tokens, cached);
    // The first guess is right, the others are wrong.
    for (int i = 0; i < 3; ++i) {
      const size_t at = tokens.size() + i;
      const TokenId right = at < plain.size() ? plain[at] : 0;
      Guess(i == 0 ? right : (right + 1) % 256, ProposalOf(item));
    }
    const Reply reply = Ask(*worker, item);
    ASSERT_TRUE(reply.status.ok()) << reply.status;
    if (tokens.size() + 1 < plain.size()) {
      EXPECT_EQ(reply.verdict->path.size(), 1);
    }
    for (int node : reply.verdict->path) tokens.push_back(ProposalOf(item)[node].token);
    EXPECT_EQ(reply.num_computed, static_cast<int>(tokens.size()));
    cached = reply.num_computed;
    tokens.push_back(reply.verdict->token);
  }
  tokens.resize(plain.size());
  EXPECT_EQ(tokens, plain);
}

TEST_P(WorkerTest, TheDraftHoldsAllButTheLastOfWhatItProposed) {
  auto worker = Draft();
  WorkItem item = Item(1, 1, Tokens(9), 0, 1.0);
  item.work = ProposeWork{5};
  const Reply reply = Ask(*worker, std::move(item));
  ASSERT_TRUE(reply.status.ok()) << reply.status;
  EXPECT_EQ(reply.proposal.size(), 5u);
  EXPECT_EQ(reply.num_computed, 9 + 4);
  for (const ProposalNode& token : reply.draft) {
    EXPECT_EQ(token.q.form, Distribution::Form::kSparse);
    EXPECT_GT(token.q(token.token), 0);
  }
}

TEST_P(WorkerTest, AProposalDoesNotDependOnWhetherTheDraftHadToCatchUp) {
  auto worker = Draft();
  const std::vector<TokenId> tokens = Tokens(12);
  WorkItem first = Item(1, 1, std::vector<TokenId>(tokens.begin(), tokens.begin() + 9), 0, 1.0);
  first.work = ProposeWork{4};
  Ask(*worker, std::move(first));
  WorkItem next = Item(1, 2, tokens, 7, 1.0);
  next.work = ProposeWork{4};
  WorkItem fresh = Item(2, 1, tokens, 0, 1.0);
  fresh.work = ProposeWork{4};
  EXPECT_EQ(Ask(*worker, std::move(next)).proposal, Ask(*worker, std::move(fresh)).proposal);
}

TEST_P(WorkerTest, AskingForNoTokensOnlyAppends) {
  auto worker = Draft();
  WorkItem item = Item(1, 1, Tokens(9), 0);
  item.work = AppendWork{};
  const Reply reply = Ask(*worker, std::move(item));
  EXPECT_TRUE(reply.status.ok());
  EXPECT_EQ(reply.num_computed, 9);
  EXPECT_TRUE(reply.proposal.empty());
}

TEST_P(WorkerTest, TheDraftAnswersWithWhatItHasWhenItsTimeIsOver) {
  auto worker = Draft();
  WorkItem item = Item(1, 1, Tokens(9), 0);
  item.work = ProposeWork{8};
  item.deadline = absl::Now() - absl::Seconds(1);
  const Reply reply = Ask(*worker, std::move(item));
  EXPECT_TRUE(reply.status.ok()) << reply.status;
  EXPECT_TRUE(reply.proposal.empty()) << "it was over before the first token";
  item = Item(1, 2, Tokens(9), 0);
  item.work = ProposeWork{8};
  item.deadline = absl::Now() + absl::Hours(1);
  EXPECT_EQ(Ask(*worker, std::move(item)).proposal.size(), 8u);
}

TEST_P(WorkerTest, ADraftEndsWhereMoreDoesNotPay) {
  auto worker = Draft();
  const auto propose = [&](uint64_t sequence, double temperature, std::optional<DraftStop> stop) {
    WorkItem item = Item(sequence, 1, Tokens(9), 0, temperature);
    item.work = ProposeWork{.draft_tokens = 5, .stop = std::move(stop)};
    return Ask(*worker, std::move(item));
  };
  uint64_t id = 0;
  for (const double temperature : {0.0, 1.0}) {
    const Reply whole = propose(++id, temperature, std::nullopt);
    const Reply sure = propose(++id, temperature, DraftStop{.acceptance = {1}, .least = .5f});
    const Reply unsure = propose(++id, temperature, DraftStop{.acceptance = {.8f}, .least = .5f});
    EXPECT_EQ(sure.proposal, whole.proposal);
    EXPECT_EQ(whole.draft[0].confidence, 0);
    if (GetParam()) {
      EXPECT_EQ(unsure.proposal, whole.proposal) << "a device takes no notice";
      EXPECT_EQ(sure.draft[0].confidence, 0) << "and says so";
      continue;
    }
    EXPECT_EQ(unsure.proposal, std::vector(whole.proposal.begin(), whole.proposal.begin() + 4))
        << ".8^4 < .5";
    EXPECT_EQ(unsure.num_computed, 9 + 3);
    for (const ProposalNode& node : unsure.draft) {
      EXPECT_GE(node.confidence, 0.5);
      EXPECT_LE(node.confidence, 1);
    }
  }
}

// A proposal that leaves in time is used. A late one may be lost, which must not depend on its tokens.
TEST_P(WorkerTest, TheDraftBeginsNoStepThatWouldEndTooLate) {
  step_takes_longer_ = absl::Milliseconds(300);
  auto worker = Draft();
  WorkItem item = Item(1, 1, Tokens(9), 0);
  item.work = ProposeWork{8};
  item.deadline = absl::Now() + absl::Milliseconds(500);
  const Reply reply = Ask(*worker, std::move(item));
  EXPECT_TRUE(reply.status.ok()) << reply.status;
  EXPECT_EQ(reply.proposal.size(), GetParam() ? 8u : 1u);
}

TEST_P(WorkerTest, TheTargetRefusesWhatItHasNotBegunInTime) {
  auto worker = Target();
  WorkItem item = Item(1, 1, Tokens(9), 0);
  item.deadline = absl::Now() - absl::Seconds(1);
  EXPECT_EQ(Ask(*worker, std::move(item)).status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_P(WorkerTest, TheSameItemTwiceGetsTheSameVerdict) {
  auto worker = Target();
  const WorkItem item = Item(1, 1, Tokens(9), 0, 1.0);
  const Reply first = Ask(*worker, item);
  int rows;
  {
    std::lock_guard lock(mutex_);
    rows = rows_;
  }
  const Reply again = Ask(*worker, item);
  EXPECT_EQ(again.verdict->token, first.verdict->token);
  EXPECT_EQ(again.num_computed, first.num_computed);
  std::lock_guard lock(mutex_);
  EXPECT_EQ(rows_, rows) << "it was remembered and not computed again";
}

TEST_P(WorkerTest, AnotherContentForTheSameRoundAndAnOlderRoundAreAborted) {
  auto worker = Target();
  Ask(*worker, Item(1, 5, Tokens(9), 0));
  EXPECT_EQ(ReasonOf(Ask(*worker, Item(1, 5, Tokens(10), 0)).status), "ROUND_CONFLICT");
  EXPECT_EQ(ReasonOf(Ask(*worker, Item(1, 4, Tokens(9), 0)).status), "ROUND_STALE");
}

TEST_P(WorkerTest, ABaseBeyondTheCacheOrAnotherPrefixIsAFailedPrecondition) {
  auto worker = Target();
  Ask(*worker, Item(1, 1, Tokens(9), 0));
  const Reply beyond = Ask(*worker, Item(1, 2, Tokens(20), 15));
  EXPECT_EQ(ReasonOf(beyond.status), "BASE_BEYOND_CACHED");
  EXPECT_EQ(beyond.num_computed, 9);
  EXPECT_EQ(ReasonOf(Ask(*worker, Item(1, 3, Tokens(12, /*salt=*/1), 9)).status), "PREFIX_MISMATCH");
}

TEST_P(WorkerTest, AnUnknownSequenceIsNotFoundAndAReleasedOneStaysSo) {
  auto worker = Target();
  EXPECT_EQ(Ask(*worker, Item(1, 1, Tokens(9), 4)).status.code(), absl::StatusCode::kNotFound);
  Ask(*worker, Item(2, 1, Tokens(9), 0));
  worker->Release(Id(2));
  EXPECT_EQ(Ask(*worker, Item(2, 2, Tokens(9), 0)).status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(WaitFor([](const SequenceStoreCounts& s) { return s.sequences == 0; }).blocks_used, 0);
}

TEST_P(WorkerTest, ParametersThatWereNeverSentAreAFailedPrecondition) {
  auto worker = Target();
  Ask(*worker, Item(1, 1, Tokens(9), 0));
  WorkItem item = Item(1, 2, Tokens(10), 9);
  item.params_hash = 12345;
  EXPECT_EQ(Ask(*worker, std::move(item)).status.message(), "params_unknown");
}

TEST_P(WorkerTest, ASequenceThatIsNotTouchedForALeaseIsFreed) {
  Options options;
  options.lease = absl::Milliseconds(100);
  auto worker = Target(options);
  Ask(*worker, Item(1, 1, Tokens(9), 0));
  EXPECT_EQ(WaitFor([](const SequenceStoreCounts& s) { return s.sequences == 0; }).blocks_used, 0);
}

TEST_P(WorkerTest, APromptIsFedInPiecesThatKeepTheBudget) {
  auto worker = Target();
  const std::vector<TokenId> prompt = Tokens(300);
  const Reply chunked = Ask(*worker, Item(1, 1, prompt, 0));
  ASSERT_TRUE(chunked.status.ok()) << chunked.status;
  {
    std::lock_guard lock(mutex_);
    EXPECT_EQ(most_rows_, 64);
  }
  Options options;
  options.max_batch_rows = 512;
  auto whole = Target(options);
  EXPECT_EQ(Ask(*whole, Item(1, 1, prompt, 0)).verdict->token, chunked.verdict->token);
}

TEST_P(WorkerTest, ManySequencesShareForwardPassesAndGetWhatEachGetsAlone) {
  auto worker = Target();
  std::vector<std::vector<TokenId>> alone;
  for (int i = 0; i < 12; ++i) {
    alone.push_back(Decode(*worker, 100 + i, Tokens(5 + 3 * i, i), 10));
  }
  std::vector<std::vector<TokenId>> together;
  for (int i = 0; i < 12; ++i) together.push_back(Tokens(5 + 3 * i, i));
  std::vector<int> cached(12, 0);
  for (int round = 1; round <= 10; ++round) {
    std::vector<std::future<Reply>> replies;
    for (int i = 0; i < 12; ++i) replies.push_back(Send(*worker, Item(i, round, together[i], cached[i])));
    for (int i = 0; i < 12; ++i) {
      const Reply reply = replies[i].get();
      cached[i] = reply.num_computed;
      together[i].push_back(reply.verdict->token);
    }
  }
  EXPECT_EQ(together, alone);
  std::lock_guard lock(mutex_);
  EXPECT_GT(largest_batch_, 1);
}

// Blocks for about one and a half sequences: newer sequences are preempted for older ones, and all get the
// same result.
TEST_P(WorkerTest, PreemptedSequencesAreSentAgainAndEndAsIfAlone) {
  auto roomy = Target();
  Options options;
  options.kv_blocks = 24;
  auto tight = Target(options);
  std::vector<std::vector<TokenId>> tokens;
  for (int i = 0; i < 3; ++i) tokens.push_back(Tokens(50, i));
  std::vector<int> cached(3, 0);
  std::vector<int> finished;
  for (uint64_t round = 1; finished.size() < 3; ++round) {
    ASSERT_LT(round, 100u);
    std::vector<std::pair<int, std::future<Reply>>> replies;
    for (int i = 0; i < 3; ++i) {
      if (tokens[i].size() < 62) replies.emplace_back(i, Send(*tight, Item(i, round, tokens[i], cached[i])));
    }
    for (auto& [i, future] : replies) {
      const Reply reply = future.get();
      cached[i] = std::min<int>(reply.num_computed, static_cast<int>(tokens[i].size()));
      if (!reply.status.ok()) continue;
      tokens[i].push_back(reply.verdict->token);
      if (tokens[i].size() < 62) continue;
      finished.push_back(i);
      tight->Release(Id(i));
    }
  }
  EXPECT_EQ(finished, (std::vector<int>{0, 1, 2}));
  EXPECT_GT(WaitFor([](const SequenceStoreCounts&) { return true; }).preemptions, 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(tokens[i], Decode(*roomy, i, Tokens(50, i), 12)) << i;
}

TEST_P(WorkerTest, APromptThatBeginsLikeAnEarlierOneIsComputedFromWhereTheyPart) {
  auto worker = Target();
  std::vector<TokenId> first = Tokens(50), second = first;
  second[30] = 7;
  EXPECT_EQ(Ask(*worker, Item(1, 1, first, 0)).prefix_hit, 0);
  worker->Release(Id(1));
  EXPECT_EQ(Ask(*worker, Item(2, 1, second, 0)).prefix_hit, 28);
  EXPECT_EQ(Ask(*worker, Item(3, 1, first, 0)).prefix_hit, 48);
  // A hit does not change the result.
  auto cold = Target();
  EXPECT_EQ(Decode(*worker, 4, first, 8), Decode(*cold, 1, first, 8));
  EXPECT_EQ(Decode(*worker, 5, second, 8), Decode(*cold, 2, second, 8));
}

TEST_P(WorkerTest, AHitNeverCoversTheTokenWhoseLogitsAreWanted) {
  auto worker = Target();
  const std::vector<TokenId> prompt = Tokens(48);
  const TokenId token = Ask(*worker, Item(1, 1, prompt, 0)).verdict->token;
  const Reply again = Ask(*worker, Item(2, 1, prompt, 0));
  EXPECT_EQ(again.prefix_hit, 44);
  EXPECT_EQ(again.verdict->token, token);
}

TEST_P(WorkerTest, ARejectedDraftAcrossABlockBoundaryLeavesNothingForOthers) {
  auto worker = Target();
  const std::vector<TokenId> prompt = Tokens(10);
  const std::vector<TokenId> plain = Decode(*worker, 1, prompt, 6);
  // Blocks of four: the wrong guesses fill the block of positions 12 to 15.
  WorkItem item = Item(2, 1, prompt, 0);
  std::vector<TokenId> wrong = prompt;
  for (int i = 0; i < 7; ++i) {
    wrong.push_back((plain[std::min<size_t>(10 + i, plain.size() - 1)] + 1) % 256);
    Guess(wrong.back(), ProposalOf(item));
  }
  const Reply reply = Ask(*worker, std::move(item));
  EXPECT_EQ(reply.verdict->path.size(), 0);
  wrong.push_back(1);
  EXPECT_EQ(Ask(*worker, Item(3, 1, wrong, 0)).prefix_hit, 8);
  const std::vector<TokenId> right(plain.begin(), plain.begin() + 11);
  EXPECT_EQ(Ask(*worker, Item(2, 2, right, reply.num_computed)).verdict->token, plain[11]);
}

TEST_P(WorkerTest, ScoringAPromptBypassesHits) {
  auto worker = Target();
  const std::vector<TokenId> prompt = Tokens(20);
  Ask(*worker, Item(1, 1, prompt, 0));
  WorkItem item = Item(2, 1, prompt, 0);
  item.work = VerifyWork{.prompt_logprobs = 0};
  std::promise<size_t> scored;
  int hit = -1;
  item.answer = [&](const Answer& answer) {
    hit = answer.prefix_hit;
    scored.set_value(answer.prompt_logprobs.size());
  };
  worker->Submit(std::move(item));
  EXPECT_EQ(scored.get_future().get(), 19u);
  EXPECT_EQ(hit, 0);
  EXPECT_EQ(Ask(*worker, Item(3, 1, prompt, 0)).prefix_hit, 16) << "there was something to hit";
}

TEST_P(WorkerTest, AForkSharesTheBlocksOfItsOriginAndGoesItsOwnWay) {
  auto worker = Target();
  const std::vector<TokenId> prompt = Tokens(22);
  const std::vector<TokenId> plain = Decode(*worker, 1, prompt, 1);
  const int used = WaitFor([](const SequenceStoreCounts& s) {
                     return s.sequences == 1 && s.in_progress == 0;
                   }).blocks_used;
  WorkItem fork = Item(2, 1, prompt, 21);
  fork.params = Params(0);
  fork.fork_of = Id(1);
  const Reply reply = Ask(*worker, std::move(fork));
  ASSERT_TRUE(reply.status.ok()) << reply.status;
  EXPECT_EQ(reply.verdict->token, plain[22]);
  EXPECT_EQ(WaitFor([](const SequenceStoreCounts& s) {
              return s.in_progress == 0 && s.sequences == 2;
            }).blocks_used,
            used + 1);

  std::vector<TokenId> other = prompt;
  other.push_back((plain[22] + 1) % 256);
  EXPECT_EQ(Ask(*worker, Item(2, 2, other, 22)).verdict->token, Decode(*worker, 3, other, 1).back());
  EXPECT_EQ(Ask(*worker, Item(1, 2, plain, 22)).verdict->token, Decode(*worker, 4, plain, 1).back());
}

TEST_P(WorkerTest, AForkOfWhatIsNotThereIsNotFound) {
  auto worker = Target();
  Ask(*worker, Item(1, 1, Tokens(9), 0));
  const auto ask = [&](uint64_t of, const std::vector<TokenId>& tokens, int base) {
    WorkItem fork = Item(2, 1, tokens, base);
    fork.params = Params(0);
    fork.fork_of = Id(of);
    return Ask(*worker, std::move(fork)).status.code();
  };
  EXPECT_EQ(ask(7, Tokens(9), 8), absl::StatusCode::kNotFound) << "unknown";
  EXPECT_EQ(ask(7, Tokens(9), 0), absl::StatusCode::kNotFound) << "unknown, and nothing of it is needed";
  EXPECT_EQ(ask(2, Tokens(9), 8), absl::StatusCode::kNotFound) << "itself, which is not there yet";
  EXPECT_EQ(ask(2, Tokens(9), 0), absl::StatusCode::kNotFound) << "itself, and nothing of it is needed";
  EXPECT_EQ(ask(1, Tokens(20), 15), absl::StatusCode::kNotFound) << "too short";
  EXPECT_EQ(ask(1, Tokens(9, /*salt=*/1), 8), absl::StatusCode::kNotFound) << "another prefix";
  EXPECT_EQ(ask(1, Tokens(9), 8), absl::StatusCode::kOk);
}

// Random arrivals, cancellations and releases, prompts that often share a prefix, and too few blocks for all:
// the worker checks its invariants after every step, and every completed sequence has the result that it
// would have alone.
TEST_P(WorkerTest, BooksBalanceAndAnswersHoldUnderRandomTraffic) {
  Options options;
  options.kv_blocks = 60;
  options.max_sequences = 12;
  auto worker = Target(options);
  auto roomy = Target();
  std::mt19937 random(17);
  struct Running {
    uint64_t id;
    std::vector<TokenId> tokens;
    int prompt, cached, round;
    std::vector<TokenId> guesses;
  };
  std::vector<Running> running;
  std::map<std::vector<TokenId>, std::vector<TokenId>> alone;
  uint64_t last_id = 1000, checks = 0;
  for (int step = 0; step < 150; ++step) {
    while (running.size() < 8) {
      std::vector<TokenId> prompt = Tokens(8 + 4 * (random() % 10), static_cast<int>(random() % 3));
      prompt.push_back(static_cast<TokenId>(random() % 4));
      running.push_back({++last_id, prompt, static_cast<int>(prompt.size()), 0, 0, {}});
    }
    std::vector<std::future<Reply>> replies;
    for (Running& r : running) {
      WorkItem item = Item(r.id, ++r.round, r.tokens, r.cached);
      if (r.cached > 0) item.params = Params(0);
      r.guesses.clear();
      for (int i = random() % 4; i > 0; --i) r.guesses.push_back(static_cast<TokenId>(random() % 256));
      for (TokenId guess : r.guesses) Guess(guess, ProposalOf(item));
      replies.push_back(Send(*worker, std::move(item)));
    }
    std::vector<Running> next;
    for (size_t i = 0; i < running.size(); ++i) {
      Running& r = running[i];
      const Reply reply = replies[i].get();
      const absl::StatusCode code = reply.status.code();
      if (code == absl::StatusCode::kOk) {
        for (int node : reply.verdict->path) r.tokens.push_back(r.guesses[node]);
        r.tokens.push_back(reply.verdict->token);
        r.cached = reply.num_computed;
      } else {
        ASSERT_TRUE(code == absl::StatusCode::kResourceExhausted || code == absl::StatusCode::kNotFound ||
                    code == absl::StatusCode::kFailedPrecondition)
            << reply.status;
        r.cached = code == absl::StatusCode::kNotFound ? 0 : std::min(reply.num_computed, r.cached);
      }
      if (static_cast<int>(r.tokens.size()) >= r.prompt + 6) {
        r.tokens.resize(r.prompt + 6);
        const std::vector<TokenId> prompt(r.tokens.begin(), r.tokens.begin() + r.prompt);
        auto [it, fresh] = alone.try_emplace(prompt);
        if (fresh) {
          it->second = Decode(*roomy, ++last_id, prompt, 6);
          roomy->Release(Id(last_id));
        }
        ASSERT_EQ(r.tokens, it->second);
        ++checks;
      } else if (random() % 12 != 0) {
        next.push_back(r);
        continue;
      }
      worker->Release(Id(r.id));
    }
    running = std::move(next);
  }
  EXPECT_GT(checks, 50u);
  EXPECT_GT(WaitFor([](const SequenceStoreCounts&) { return true; }).prefix_hit, 0);
}

TEST_P(WorkerTest, WhatCanNeverFitIsRefusedAtOnce) {
  Options options;
  options.kv_blocks = 4;
  auto worker = Target(options);
  EXPECT_EQ(Ask(*worker, Item(1, 1, Tokens(17), 0)).status.code(), absl::StatusCode::kInvalidArgument);
  auto roomy = Target();
  EXPECT_EQ(Ask(*roomy, Item(1, 1, Tokens(kContext + 1), 0)).status.code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(WorkerTest, OneMoreSequenceThanAllowedTakesThePlaceOfTheOneLeftAloneLongest) {
  Options options;
  options.max_sequences = 2;
  options.abandoned_after = absl::ZeroDuration();
  auto worker = Target(options);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Ask(*worker, Item(i, 1, Tokens(9), 0)).status.ok());
  EXPECT_EQ(Ask(*worker, Item(0, 2, Tokens(10), 9)).status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Ask(*worker, Item(0, 3, Tokens(10), 0)).status.ok());
}

INSTANTIATE_TEST_SUITE_P(Decides, WorkerTest, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "TheModel" : "TheHost"); });

}  // namespace
}  // namespace outrider
