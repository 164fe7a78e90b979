// Trees under random traffic: whatever becomes of a sequence between its rounds, each gets what it would get
// if it were sent whole to a worker that has nothing else to do.
#include <functional>
#include <random>

#include "changed_model.h"
#include "common/spec/status.h"
#include "draft_service/draft_sampler.h"
#include "host_device_model.h"
#include "target_service/rejection_sampler.h"
#include "worker_trees_testing.h"

namespace outrider {
namespace {

using testing::TreeItem;
using testing::TreeReply;

// Few, so that random trees have paths that stand.
const std::vector<TokenId>& Allowed() {
  static const auto& tokens = *new std::vector<TokenId>{3, 50, 120, 200};
  return tokens;
}

// How sequences are sampled; their seeds tell them apart.
std::vector<std::shared_ptr<const SequenceParams>> Settings() {
  std::vector<std::shared_ptr<const SequenceParams>> settings;
  for (const auto& [rule, temperature, logprobs] : {std::tuple(Rule::kToken, 1.0, -1),
                                                    {Rule::kToken, 0.0, -1},
                                                    {Rule::kCoupled, 0.8, -1},
                                                    {Rule::kToken, 1.0, 2}}) {
    SequenceParams params{.rule = rule, .prompt_length = 4, .draft_top_n = 3, .logprobs = logprobs};
    params.sampling.temperature = temperature;
    params.sampling.allowed_ids = Allowed();
    if (logprobs >= 0) params.sampling.presence_penalty = 1;
    params.key.seed = settings.size();
    settings.push_back(std::make_shared<SequenceParams>(params));
  }
  return settings;
}

// What happened, so that a test knows that it has seen it.
struct Seen {
  int checked = 0;
  int wrong = 0;  // answers that a sequence sent whole would not get
  int moved = 0;  // verdicts or proposals after which a path had to be moved
  int forked = 0;
  int repeated = 0;
  int superseded = 0;
  int late = 0;
  int preempted = 0;  // items that found no room, or whose sequence had lost its cache
  int prefix_hit = 0;
  int cut = 0;  // proposals that ended early
};

class Traffic {
 public:
  using StartWorker = std::function<std::unique_ptr<Worker>(const RunnerOptions&, WorkerOptions)>;

  // Few blocks and few rows a step for the one, enough of both and no memory for the other.
  Traffic(uint32_t seed, int block_size, const StartWorker& start) : random_(seed), settings_(Settings()) {
    SequenceStoreOptions store{.max_sequences = 24, .abandoned_after = absl::ZeroDuration()};
    worker_ = start(testing::TreeModel(280 / block_size, block_size, 40), {40, store, true});
    store.prefix_cache = false;
    alone_ = start(testing::TreeModel(64, 16, 256), {256, store, true});
  }

  Seen Run(int steps) {
    for (int step = 0; step < steps; ++step) {
      while (known_.size() < 6) Begin();
      std::vector<std::pair<size_t, WorkItem>> items;
      std::vector<std::future<TreeReply>> replies;
      for (size_t i = 0; i < known_.size(); ++i) {
        // Now and then a round that nobody waits for any more.
        for (int more = Pick(10) == 0; more >= 0; --more) {
          items.emplace_back(i, NextItem(known_[i]));
          replies.push_back(testing::SendTree(*worker_, items.back().second));
        }
      }
      for (size_t i = 0; i < items.size(); ++i) {
        Take(known_[items[i].first], items[i].second, replies[i].get());
      }
      std::erase_if(known_, [&](const Known& known) {
        const bool over = known.tokens.size() > 90 || Pick(25) == 0;
        if (over) worker_->Release({known.id, ~known.id});
        return over;
      });
    }
    return seen_;
  }

 protected:
  // A sequence as its coordinator knows it.
  struct Known {
    uint64_t id = 0;
    std::shared_ptr<const SequenceParams> params;
    std::vector<TokenId> tokens = {};
    int held = 0;
    uint64_t round = 0;
    std::optional<SequenceId> fork_of = {};
  };

  int Pick(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  TokenId PickToken() { return Allowed()[static_cast<size_t>(Pick(4))]; }

  // The work of the next item.
  virtual Work NextWork(const Known& known, int base) = 0;
  // What was committed of an answer's proposal or verdict, and the token after it.
  virtual std::vector<TokenId> Committed(const WorkItem& item, const TreeReply& reply) = 0;
  virtual bool IsRight(const TreeReply& reply, const TreeReply& alone) = 0;

  std::mt19937 random_;
  Seen seen_;

 private:
  // With the text of another sequence, or as a copy of it, or with a prompt of its own.
  void Begin() {
    Known known{.id = ++last_id_, .params = settings_[static_cast<size_t>(Pick(4))]};
    if (const int how = known_.empty() ? 3 : Pick(4); how < 3) {
      const Known& origin = known_[static_cast<size_t>(Pick(static_cast<int>(known_.size())))];
      known.tokens = origin.tokens;
      if (how < 2 && origin.held > 0) {
        known.fork_of = SequenceId{origin.id, ~origin.id};
        known.held = std::max(origin.held - Pick(3), 0);
        if (Pick(3) == 0) known.params = origin.params;
      }
    } else {
      for (int i = Pick(60) + 4; i > 0; --i) known.tokens.push_back(static_cast<TokenId>(Pick(256)));
    }
    known_.push_back(std::move(known));
  }

  WorkItem NextItem(Known& known) {
    int base = std::min(known.held, static_cast<int>(known.tokens.size()) - 1);
    if (Pick(8) == 0) base = Pick(base + 1);
    if (Pick(16) == 0) base = 0;
    WorkItem item =
        TreeItem(known.id, ++known.round, known.tokens, base, known.params, NextWork(known, base));
    item.fork_of = known.fork_of;
    if (Pick(12) == 0) item.deadline = absl::Now() + absl::Microseconds(Pick(2000));
    return item;
  }

  void Take(Known& known, const WorkItem& item, const TreeReply& reply) {
    known.fork_of.reset();
    if (!reply.status.ok()) return TakeRefusal(known, item, reply);
    Check(item, reply);
    seen_.forked += item.fork_of ? 1 : 0;
    seen_.prefix_hit += reply.prefix_hit;
    if (item.round < known.round) return;  // what comes after it counts
    if (Pick(6) == 0) Repeat(item, reply);
    const std::vector<TokenId> more = Committed(item, reply);
    // What was drafted and not accepted is of no use.
    known.held = std::min(reply.num_computed, static_cast<int>(item.committed() + more.size()) - 1);
    known.tokens.insert(known.tokens.end(), more.begin(), more.end());
  }

  void TakeRefusal(Known& known, const WorkItem& item, const TreeReply& reply) {
    const absl::StatusCode code = reply.status.code();
    switch (code) {
      case absl::StatusCode::kAborted:
        EXPECT_EQ(ReasonOf(reply.status), "ROUND_SUPERSEDED");
        EXPECT_LT(item.round, known.round);
        ++seen_.superseded;
        break;
      case absl::StatusCode::kDeadlineExceeded:
        EXPECT_NE(item.deadline, absl::InfiniteFuture());
        ++seen_.late;
        break;
      default:
        EXPECT_TRUE(code == absl::StatusCode::kResourceExhausted || code == absl::StatusCode::kNotFound ||
                    ReasonOf(reply.status) == "BASE_BEYOND_CACHED")
            << reply.status;
        ++seen_.preempted;
    }
    known.held = code == absl::StatusCode::kNotFound ? 0 : reply.num_computed;
  }

  // The same item, sent again, has the answer that it had.
  void Repeat(const WorkItem& item, const TreeReply& reply) {
    const TreeReply again = testing::AskTree(*worker_, item);
    ASSERT_TRUE(again.status.ok()) << again.status;
    ++seen_.repeated;
    EXPECT_EQ(again.num_computed, reply.num_computed);
    EXPECT_TRUE(testing::BeginsWith(again.proposal, reply.proposal));
    if (reply.verdict) {
      EXPECT_TRUE(testing::SameVerdicts(*again.verdict, *reply.verdict));
    }
  }

  void Check(const WorkItem& item, const TreeReply& reply) {
    const Known& known =
        *std::find_if(known_.begin(), known_.end(), [&](const Known& k) { return k.id == item.id.hi; });
    WorkItem whole =
        TreeItem(++last_id_, 1, std::span(known.tokens).first(item.committed()), 0, item.params, item.work);
    const SequenceId id = whole.id;
    const TreeReply alone = testing::AskTree(*alone_, std::move(whole));
    alone_->Release(id);
    ASSERT_TRUE(alone.status.ok()) << alone.status;
    ++seen_.checked;
    seen_.cut += reply.proposal.size() < alone.proposal.size() ? 1 : 0;
    seen_.wrong += IsRight(reply, alone) ? 0 : 1;
  }

  const std::vector<std::shared_ptr<const SequenceParams>> settings_;
  std::unique_ptr<Worker> worker_, alone_;
  std::vector<Known> known_;
  uint64_t last_id_ = 0;
};

class TargetTraffic final : public Traffic {
 public:
  using Traffic::Traffic;

 private:
  Work NextWork(const Known& known, int base) override {
    VerifyWork verify;
    const bool chain = Pick(4) == 0;
    for (int i = 0, nodes = Pick(chain ? 5 : 20); i < nodes; ++i) {
      const TokenId token = PickToken();
      ProposalNode node = testing::Certain(token, chain ? i - 1 : Pick(i + 1) - 1);
      if (known.params->rule == Rule::kCoupled) node.q = {};
      if (known.params->rule == Rule::kToken && Pick(2) == 0) {
        node.q = {.form = Distribution::Form::kSparse, .ids = Allowed()};
        for (size_t x = 0; x < 4; ++x) node.q.weights.push_back(static_cast<float>(1 + Pick(9)));
        EXPECT_TRUE(Prepare(node.q, token, 256).ok());
      }
      verify.proposal.push_back(std::move(node));
    }
    if (base == 0 && Pick(4) == 0) verify.prompt_logprobs = 1;
    if (Pick(8) == 0) verify.candidates = 3;
    return verify;
  }

  std::vector<TokenId> Committed(const WorkItem& item, const TreeReply& reply) override {
    if (!reply.verdict) return {PickToken()};
    const Proposal& tree = std::get<VerifyWork>(item.work).proposal;
    std::vector<TokenId> tokens;
    for (int node : reply.verdict->path) tokens.push_back(tree[static_cast<size_t>(node)].token);
    const int length = static_cast<int>(tokens.size());
    EXPECT_EQ(reply.num_computed, static_cast<int>(item.committed()) + length);
    seen_.moved += length > 0 && reply.verdict->path.back() != length - 1 ? 1 : 0;
    tokens.push_back(reply.verdict->token);
    return tokens;
  }

  bool IsRight(const TreeReply& reply, const TreeReply& alone) override {
    const auto same = [](const CandidateRow& a, const CandidateRow& b) {
      return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
        return x.token == y.token && x.log_probability == y.log_probability;
      });
    };
    return reply.verdict.has_value() == alone.verdict.has_value() &&
           (!reply.verdict || testing::SameVerdicts(*reply.verdict, *alone.verdict)) &&
           reply.logprobs == alone.logprobs &&
           std::equal(reply.candidates.begin(), reply.candidates.end(), alone.candidates.begin(),
                      alone.candidates.end(), same);
  }
};

class DraftTraffic final : public Traffic {
 public:
  using Traffic::Traffic;

 private:
  Work NextWork(const Known& /*known*/, int /*base*/) override {
    static const auto& shapes =
        *new std::vector<const char*>{"2x2x1", "3x2", "chains:3", "budget:9", "1x3x1"};
    if (Pick(10) == 0) return AppendWork{};
    ProposeWork propose{.draft_tokens = 1 + Pick(4)};
    if (Pick(4) != 0) propose.tree = *ParseTreeShape(shapes[static_cast<size_t>(Pick(5))]);
    return propose;
  }

  // A random path, as if it had been accepted, and what the target might have said.
  std::vector<TokenId> Committed(const WorkItem& /*item*/, const TreeReply& reply) override {
    std::vector<int> path;
    for (int node = 0; node < static_cast<int>(reply.proposal.size()); ++node) {
      const int last = path.empty() ? -1 : path.back();
      if (reply.proposal[static_cast<size_t>(node)].parent == last && Pick(2) == 0) path.push_back(node);
    }
    seen_.moved += !path.empty() && path.back() != static_cast<int>(path.size()) - 1 ? 1 : 0;
    std::vector<TokenId> tokens;
    for (int node : path) tokens.push_back(reply.proposal[static_cast<size_t>(node)].token);
    tokens.push_back(PickToken());
    return tokens;
  }

  bool IsRight(const TreeReply& reply, const TreeReply& alone) override {
    return testing::BeginsWith(alone.proposal, reply.proposal);
  }
};

// A model that leaves an accepted path where the tree had it.
class UnmovedModel final : public testing::ChangedModel {
 public:
  explicit UnmovedModel(std::unique_ptr<Model> model)
      : ChangedModel(std::move(model), [](LogitsView) { return absl::OkStatus(); }) {}
  void MoveSlots(absl::Span<const BlockId> /*blocks*/, absl::Span<const SlotMove> /*moves*/) override {}
};

class UnmovedBackend final : public Backend {
 public:
  absl::Status Check(const RunnerOptions& /*options*/) const override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Model>> Load(const DecoderSpec& spec, const TensorSource& weights,
                                              const RunnerOptions& options,
                                              ThreadPool& threads) const override {
    absl::StatusOr<std::unique_ptr<Model>> model =
        (*BackendFor("native", "cpu"))->Load(spec, weights, options, threads);
    if (!model.ok()) return model.status();
    return std::make_unique<UnmovedModel>(*std::move(model));
  }
};

template <class SamplerOfIt>
std::unique_ptr<Worker> Start(const RunnerOptions& load, const Backend& backend, WorkerOptions options) {
  absl::StatusOr<std::unique_ptr<Runner>> runner = Runner::Load(load, backend);
  EXPECT_TRUE(runner.ok()) << runner.status();
  return std::make_unique<Worker>(*std::move(runner), std::make_unique<SamplerOfIt>(), options,
                                  Worker::Hooks{});
}

// Parameterised by whether the model runs device tasks, as chains are, or leaves its logits to the host.
class RandomTreesTest : public ::testing::TestWithParam<bool> {
 protected:
  template <class OfIt, class SamplerOfIt>
  static Seen Run(uint32_t seed, int block_size, int steps) {
    return OfIt(seed, block_size,
                [](const RunnerOptions& load, WorkerOptions options) {
                  return GetParam() ? Start<SamplerOfIt>(load, testing::HostDevice(/*team=*/1), options)
                                    : Start<SamplerOfIt>(load, **BackendFor("native", "cpu"), options);
                })
        .Run(steps);
  }
};

TEST_P(RandomTreesTest, AVerdictIsThatOfTheWholeSequenceSentAtOnce) {
  for (const int block_size : {1, 4, 16}) {
    const Seen seen = Run<TargetTraffic, RejectionSampler>(5, block_size, 250);
    EXPECT_EQ(seen.wrong, 0) << "of " << seen.checked << " in blocks of " << block_size;
    EXPECT_GT(seen.checked, 200);
    for (const int count : {seen.moved, seen.forked, seen.repeated, seen.superseded, seen.preempted}) {
      EXPECT_GT(count, 0);
    }
    EXPECT_GT(seen.prefix_hit, 0);
  }
}

TEST_P(RandomTreesTest, AProposalIsThatOfTheWholeSequenceSentAtOnceOrItsBegin) {
  for (const int block_size : {1, 4, 16}) {
    const Seen seen = Run<DraftTraffic, DraftSampler>(6, block_size, 250);
    EXPECT_EQ(seen.wrong, 0) << "of " << seen.checked << " in blocks of " << block_size;
    EXPECT_GT(seen.checked, 200);
    for (const int count :
         {seen.moved, seen.forked, seen.repeated, seen.superseded, seen.preempted, seen.cut}) {
      EXPECT_GT(count, 0);
    }
    EXPECT_GT(seen.prefix_hit, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Decides, RandomTreesTest, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "TheModel" : "TheHost"); });

// The negative control of both.
TEST(RandomTrees, APathThatIsNotMovedIsNoticed) {
  const auto unmoved = [](const auto& start) {
    return [start](const RunnerOptions& load, WorkerOptions options) {
      return start(load, UnmovedBackend(), options);
    };
  };
  EXPECT_GT(TargetTraffic(5, 4, unmoved(Start<RejectionSampler>)).Run(20).wrong, 5);
  EXPECT_GT(DraftTraffic(6, 4, unmoved(Start<DraftSampler>)).Run(20).wrong, 5);
}

}  // namespace
}  // namespace outrider
