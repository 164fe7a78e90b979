// Trees under random traffic.
#include <algorithm>
#include <set>
#include <vector>

#include "changed_model.h"
#include "draft_service/draft_sampler.h"
#include "host_device_model.h"
#include "target_service/rejection_sampler.h"
#include "worker_traffic.h"

namespace outrider {
namespace {

using testing::Allowed;
using testing::Seen;
using testing::Traffic;
using testing::TreeReply;

testing::TrafficSettings TreeSettings() {
  testing::TrafficSettings settings;
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

  bool IsRight(const WorkItem& /*item*/, const TreeReply& reply, const TreeReply& alone) override {
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

  // A random path, as if it had been accepted, and a token that the target might have said.
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

  // A budget's tree of taken tokens that ended early still has nodes that later levels would push out.
  bool IsRight(const WorkItem& item, const TreeReply& reply, const TreeReply& alone) override {
    const auto* propose = std::get_if<ProposeWork>(&item.work);
    const bool takes = propose != nullptr && propose->tree &&
                       std::holds_alternative<NodeBudget>(*propose->tree) &&
                       item.params->sampling.temperature == 0;
    const int levels = Depth(reply.proposal);
    if (!takes || levels == Depth(alone.proposal)) return testing::BeginsWith(alone.proposal, reply.proposal);
    const std::set<std::vector<TokenId>> paths = PathsOf(reply.proposal, levels);
    const std::set<std::vector<TokenId>> expected = PathsOf(alone.proposal, levels);
    return paths.size() <= 9 && std::includes(paths.begin(), paths.end(), expected.begin(), expected.end());
  }

  // The paths of the nodes on the first `levels` levels.
  static std::set<std::vector<TokenId>> PathsOf(const Proposal& tree, int levels) {
    std::vector<std::vector<TokenId>> paths;
    std::set<std::vector<TokenId>> first;
    for (const ProposalNode& node : tree) {
      paths.push_back(node.parent < 0 ? std::vector<TokenId>() : paths[static_cast<size_t>(node.parent)]);
      paths.back().push_back(node.token);
      if (std::ssize(paths.back()) <= levels) first.insert(paths.back());
    }
    return first;
  }
};

// A model that leaves an accepted path where the tree had it.
class UnmovedModel final : public testing::ChangedModel {
 public:
  using ChangedModel::ChangedModel;
  void MoveSlots(absl::Span<const BlockId> /*blocks*/, absl::Span<const SlotMove> /*moves*/) override {}
};

std::unique_ptr<Worker> StartWith(std::unique_ptr<Sampler> sampler, const RunnerOptions& load,
                                  const Backend& backend, WorkerOptions options) {
  absl::StatusOr<std::unique_ptr<Runner>> runner = Runner::Load(load, backend);
  EXPECT_TRUE(runner.ok()) << runner.status();
  return std::make_unique<Worker>(*std::move(runner), std::move(sampler), options, Worker::Hooks{});
}

template <class SamplerOfIt>
std::unique_ptr<Worker> Start(const RunnerOptions& load, const Backend& backend, WorkerOptions options) {
  return StartWith(std::make_unique<SamplerOfIt>(), load, backend, options);
}

// Parameterised by whether the model runs device tasks, as for chains, or leaves its logits to the host.
class RandomTreesTest : public ::testing::TestWithParam<bool> {
 protected:
  template <class OfIt, class SamplerOfIt>
  static Seen Run(uint32_t seed, int block_size, int steps) {
    return OfIt(seed, block_size, TreeSettings(),
                [](const RunnerOptions& load, WorkerOptions options) {
                  return GetParam() ? Start<SamplerOfIt>(load, testing::HostDevice(/*team=*/1), options)
                                    : Start<SamplerOfIt>(load, **BackendFor("native", "cpu"), options);
                })
        .Run(steps);
  }
};

TEST_P(RandomTreesTest, AVerdictIsThatOfTheWholeSequenceSentAtOnce) {
  for (const int block_size : testing::TrafficBlockSizes()) {
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
  for (const int block_size : testing::TrafficBlockSizes()) {
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

// Compares proposals under random traffic with those of a worker with other options.
void CompareProposals(bool on_device, const DraftOptions& judged, const DraftOptions& alone) {
  const testing::HostDevice device(/*team=*/1);
  const auto native = BackendFor("native", "cpu");
  const Backend& backend = on_device ? static_cast<const Backend&>(device) : **native;
  for (const int block_size : testing::TrafficBlockSizes()) {
    int started = 0;  // the worker that is judged comes first
    const auto start = [&](const RunnerOptions& load, WorkerOptions options) {
      return StartWith(std::make_unique<DraftSampler>(started++ == 0 ? judged : alone), load, backend,
                       options);
    };
    const Seen seen = DraftTraffic(7, block_size, TreeSettings(), start).Run(250);
    EXPECT_EQ(seen.wrong, 0) << "of " << seen.checked << " in blocks of " << block_size;
    EXPECT_GT(seen.checked, 200);
    for (const int count : {seen.preempted, seen.cut}) EXPECT_GT(count, 0);
  }
}

// A wrong guess that were kept, or left in the cache, would change proposals.
TEST_P(RandomTreesTest, AProposalWithGuessesIsTheOneWithout) {
  CompareProposals(GetParam(), {.lookup_tokens = 3}, {});
}

// So would a mask.
TEST_P(RandomTreesTest, AProposalWithMasksIsThatOfTheWholeSequenceSentAtOnce) {
  const DraftOptions parallel{.parallel_tokens = 2, .mask = 1};
  CompareProposals(GetParam(), parallel, parallel);
}

INSTANTIATE_TEST_SUITE_P(Decides, RandomTreesTest, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "TheModel" : "TheHost"); });

// The negative control of both tests above.
TEST(RandomTrees, APathThatIsNotMovedIsNoticed) {
  const testing::WrappingBackend backend([](std::unique_ptr<Model> model, const DecoderConfig&) {
    return std::make_unique<UnmovedModel>(std::move(model));
  });
  const auto unmoved = [&](const auto& start) {
    return [&backend, start](const RunnerOptions& load, WorkerOptions options) {
      return start(load, backend, options);
    };
  };
  EXPECT_GT(TargetTraffic(5, 4, TreeSettings(), unmoved(Start<RejectionSampler>)).Run(20).wrong, 5);
  EXPECT_GT(DraftTraffic(6, 4, TreeSettings(), unmoved(Start<DraftSampler>)).Run(20).wrong, 5);
}

}  // namespace
}  // namespace outrider
