// The target's own proposals under random traffic: the proposal after a verdict depends on the committed
// tokens alone.
#include <array>
#include <atomic>
#include <map>

#include "changed_model.h"
#include "heads_testing.h"
#include "worker_traffic.h"

namespace outrider {
namespace {

using testing::Allowed;
using testing::Seen;
using testing::Traffic;
using testing::TreeReply;

constexpr int kKinds = static_cast<int>(kProposerNames.size());
constexpr int kWays = 3;  // of sampling

// kWays settings of each kind of proposer and of none, or all of them of the kind `only`.
testing::TrafficSettings Settings(std::optional<ProposerKind> only = std::nullopt) {
  testing::TrafficSettings settings;
  for (int kind = 0; kind <= kKinds; ++kind) {
    for (const auto& [rule, temperature] :
         {std::pair(Rule::kToken, 0.8), {Rule::kToken, 0.0}, {Rule::kCoupled, 0.8}}) {
      SequenceParams params{.rule = rule, .prompt_length = 4, .draft_top_n = 3};
      if (kind < kKinds) params.proposer = static_cast<ProposerKind>(kind);
      if (only) params.proposer = only;
      params.sampling.temperature = temperature;
      params.sampling.allowed_ids = Allowed();
      params.key.seed = settings.size();
      settings.push_back(std::make_shared<SequenceParams>(params));
    }
  }
  return settings;
}

// Counts of the proposals of a kind, and of the verdicts on them.
struct OfKind {
  int proposed = 0;
  int missing = 0;  // found no room
  int stood = 0;    // verdicts that accepted a part of a proposal
};

// Rounds as a coordinator plays them: the next item verifies the proposal that followed a verdict.
class ProposalTraffic final : public Traffic {
 public:
  using Traffic::Traffic;

  const OfKind& of_kind(int kind) const { return of_kind_[static_cast<size_t>(kind)]; }
  int switched() const { return switched_; }

 private:
  std::shared_ptr<const SequenceParams> NextParams(const Known& known) override {
    if (Pick(6) != 0) return known.params;
    ++switched_;
    // Switches from EAGLE to none and back, or to any other kind.
    const bool away = Pick(2) == 0 && known.params->proposer == ProposerKind::kEagle;
    const bool back = Pick(2) == 0 && !known.params->proposer;
    const int kind = away ? kKinds : back ? static_cast<int>(ProposerKind::kEagle) : Pick(kKinds + 1);
    // The rule stays, since it decides whether a proposal has a q.
    const int way = static_cast<int>(known.params->key.seed) % kWays;
    return settings_[static_cast<size_t>(kind * kWays + way)];
  }

  Work NextWork(const Known& known, int base) override {
    static const auto& shapes = *new std::vector<const char*>{"2x2x1", "budget:6", "chains:2"};
    VerifyWork verify;
    if (const auto last = proposals_.find(known.id); last != proposals_.end()) verify.proposal = last->second;
    if (base == 0 && Pick(8) == 0) verify.prompt_logprobs = 1;
    if (Pick(10) == 0) return verify;
    verify.propose = ProposalRequest{.draft_tokens = 1 + Pick(4)};
    if (Pick(3) != 0) verify.propose->tree = *ParseTreeShape(shapes[static_cast<size_t>(Pick(3))]);
    return verify;
  }

  std::vector<TokenId> Committed(const WorkItem& item, const TreeReply& reply) override {
    const Proposal& tree = std::get<VerifyWork>(item.work).proposal;
    std::vector<TokenId> tokens;
    for (int node : reply.verdict->path) tokens.push_back(tree[static_cast<size_t>(node)].token);
    const int length = static_cast<int>(tokens.size());
    EXPECT_EQ(reply.num_computed, static_cast<int>(item.committed()) + length);
    seen_.moved += length > 0 && reply.verdict->path.back() != length - 1 ? 1 : 0;
    tokens.push_back(reply.verdict->token);
    const std::optional<ProposerKind>& kind = item.params->proposer;
    if (kind) of_kind_[static_cast<size_t>(*kind)].stood += length > 0 ? 1 : 0;
    proposals_[item.id.hi] = reply.proposal;
    return tokens;
  }

  // The proposal after a verdict may be missing, but is never another one.
  bool IsRight(const WorkItem& item, const TreeReply& reply, const TreeReply& alone) override {
    if (!alone.proposal.empty()) {
      OfKind& of_kind = of_kind_[static_cast<size_t>(*item.params->proposer)];
      ++(reply.proposal.empty() ? of_kind.missing : of_kind.proposed);
    }
    return testing::SameVerdicts(*reply.verdict, *alone.verdict) && reply.logprobs == alone.logprobs &&
           (reply.proposal.empty() || reply.proposal.size() == alone.proposal.size()) &&
           testing::BeginsWith(alone.proposal, reply.proposal);
  }

  std::map<uint64_t, Proposal> proposals_;  // by sequence, what followed its last verdict
  std::array<OfKind, kKinds> of_kind_;
  int switched_ = 0;
};

// A model that leaves the copy of a block empty.
class UncopiedModel final : public testing::ChangedModel {
 public:
  using ChangedModel::ChangedModel;
  void CopyBlock(BlockId /*from*/, BlockId /*to*/) override {}
};

// Parameterised by whether EAGLE is EAGLE-3.
class RandomProposals : public ::testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<Worker> Start(RunnerOptions load, const WorkerOptions& options, const Backend& backend) {
    load.heads = heads_.paths();
    absl::StatusOr<std::unique_ptr<Runner>> runner = Runner::Load(load, backend);
    EXPECT_TRUE(runner.ok()) << runner.status();
    return std::make_unique<Worker>(*std::move(runner), std::make_unique<RejectionSampler>(), options,
                                    Worker::Hooks());
  }
  Traffic::StartWorker Starter(const Backend& backend) {
    return [&](const RunnerOptions& load, const WorkerOptions& options) {
      return Start(load, options, backend);
    };
  }

  const testing::HeadFolders heads_{testing::HeadsOfAllKinds(7, GetParam())};
  const std::unique_ptr<Backend> cpu_ = *BackendFor("native", "cpu");
};

INSTANTIATE_TEST_SUITE_P(Eagle, RandomProposals, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Version3" : "Version1"; });

TEST_P(RandomProposals, FollowAVerdictAsIfTheSequenceHadBeenSentAtOnce) {
  for (const int block_size : testing::TrafficBlockSizes()) {
    ProposalTraffic traffic(8, block_size, Settings(), Starter(*cpu_));
    const Seen seen = traffic.Run(250);
    EXPECT_EQ(seen.wrong, 0) << "of " << seen.checked << " in blocks of " << block_size;
    EXPECT_GT(seen.checked, 200);
    for (const int count : {seen.moved, seen.forked, seen.repeated, seen.superseded, seen.preempted,
                            seen.prefix_hit, traffic.switched()}) {
      EXPECT_GT(count, 0);
    }
    for (int kind = 0; kind < kKinds; ++kind) {
      const OfKind& of_kind = traffic.of_kind(kind);
      EXPECT_GT(of_kind.proposed, 20) << kProposerNames[static_cast<size_t>(kind)];
      EXPECT_GT(of_kind.stood, 3) << kProposerNames[static_cast<size_t>(kind)];
      EXPECT_LT(of_kind.missing, of_kind.proposed) << kProposerNames[static_cast<size_t>(kind)];
    }
  }
}

// The negative control: a block with rows of EAGLE's layer is not copied when it is written to.
TEST_P(RandomProposals, AfterABlockThatWasNotCopiedAreNoticed) {
  // Only EAGLE's layer, which has no outer norms, is such a model. The target is in order.
  const testing::WrappingBackend backend([](std::unique_ptr<Model> model, const DecoderConfig& spec) {
    return spec.outer_norms ? std::move(model) : std::make_unique<UncopiedModel>(std::move(model));
  });
  EXPECT_GT(ProposalTraffic(8, 16, Settings(ProposerKind::kEagle), Starter(backend)).Run(250).wrong, 5);
}

TEST_P(RandomProposals, ThatCannotBeMadeLeaveTheVerdictAsItIs) {
  std::atomic<int> passes_until_failure = -1;
  const auto fail = [&](LogitsView) {
    return --passes_until_failure == 0 ? absl::ResourceExhaustedError("too large") : absl::OkStatus();
  };
  // Only EAGLE's layer, which has no outer norms, fails.
  const testing::WrappingBackend failing([&](std::unique_ptr<Model> model, const DecoderConfig& spec) {
    return spec.outer_norms ? std::move(model)
                            : std::make_unique<testing::ChangedModel>(std::move(model), fail);
  });
  const auto params = Settings()[static_cast<size_t>(ProposerKind::kEagle) * kWays];
  const auto ask = [&](Worker& worker, uint64_t round, const std::vector<TokenId>& text, int base) {
    VerifyWork verify;
    verify.propose = ProposalRequest{.draft_tokens = 4};
    return testing::SendTree(worker, testing::TreeItem(1, round, text, base, params, std::move(verify)))
        .get();
  };
  const auto healthy = Start(testing::TreeModel(64, 16, 256), {}, *cpu_);
  const std::vector<TokenId> text = testing::Text(20, 1);
  const TreeReply first = ask(*healthy, 1, text, 0);
  std::vector<TokenId> longer = text;
  longer.push_back(first.verdict->token);
  const TreeReply second = ask(*healthy, 2, longer, 20);
  for (const int pass : {1, 2, 3}) {
    const auto worker = Start(testing::TreeModel(64, 16, 256), {.check_invariants = true}, failing);
    passes_until_failure = pass;
    const TreeReply reply = ask(*worker, 1, text, 0);
    ASSERT_TRUE(reply.status.ok()) << reply.status;
    EXPECT_TRUE(testing::SameVerdicts(*reply.verdict, *first.verdict));
    EXPECT_TRUE(reply.proposal.empty()) << "pass " << pass;
    passes_until_failure = -1;
    const TreeReply next = ask(*worker, 2, longer, 20);
    ASSERT_TRUE(next.status.ok()) << next.status;
    EXPECT_TRUE(testing::SameVerdicts(*next.verdict, *second.verdict));
    EXPECT_EQ(next.proposal.size(), 4u) << "pass " << pass;
    EXPECT_TRUE(testing::BeginsWith(next.proposal, second.proposal)) << "pass " << pass;
  }
}

// EAGLE computes the rows that it missed in as many passes as it takes, for one sequence or more.
TEST_P(RandomProposals, OfEagleAfterALongPromptDoNotDependOnTheSizeOfABatch) {
  const testing::TrafficSettings settings = Settings();
  const auto params = settings[static_cast<size_t>(ProposerKind::kEagle) * kWays];
  std::vector<Proposal> expected;
  for (const int rows : {256, 40, 7}) {
    const auto worker = Start(testing::TreeModel(64, 16, rows), {.max_batch_rows = rows}, *cpu_);
    std::vector<std::future<TreeReply>> replies;
    for (uint64_t id = 1; id <= 3; ++id) {
      VerifyWork verify;
      verify.propose = ProposalRequest{.draft_tokens = 4};
      const std::vector<TokenId> text = testing::Text(70 + 20 * static_cast<int>(id), static_cast<int>(id));
      replies.push_back(
          testing::SendTree(*worker, testing::TreeItem(id, 1, text, 0, params, std::move(verify))));
    }
    for (size_t i = 0; i < replies.size(); ++i) {
      const TreeReply reply = replies[i].get();
      ASSERT_TRUE(reply.status.ok()) << reply.status;
      ASSERT_EQ(reply.proposal.size(), 4u);
      if (rows == 256) expected.push_back(reply.proposal);
      EXPECT_TRUE(testing::BeginsWith(reply.proposal, expected[i])) << rows << " rows, text " << i;
    }
  }
}

}  // namespace
}  // namespace outrider
