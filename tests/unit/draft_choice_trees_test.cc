// When trees are drafted in place of chains, and which.
#include <gmock/gmock.h>

#include <random>

#include "common/spec/analysis.h"
#include "coordinator/generation/round_tally.h"
#include "coordinator/policy/draft_choice.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;

Clock::duration Micros(double us) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(us * 1e-6));
}

Proposal TreeOf(const std::vector<int>& parents) {
  Proposal tree;
  for (size_t i = 0; i < parents.size(); ++i) {
    tree.push_back({.token = static_cast<TokenId>(i), .parent = parents[i], .q = {}});
  }
  return tree;
}

// ---- OfferedNodes

std::vector<std::tuple<int, int, bool>> Offered(const std::vector<int>& parents,
                                                const std::vector<int>& path) {
  std::vector<std::tuple<int, int, bool>> offered;
  for (const OfferedNode& node : OfferedNodes(TreeOf(parents), path)) {
    offered.emplace_back(node.depth, node.rank, node.accepted);
  }
  return offered;
}

TEST(OfferedNodes, AreTheChildrenOfWhatStandsByTheirPlaceAmongTheirSiblings) {
  const std::vector<int> parents = {-1, -1, 0, 1, 1, 4, 2};
  EXPECT_THAT(Offered(parents, {1, 4}),
              ElementsAre(std::tuple(0, 0, false), std::tuple(0, 1, true), std::tuple(1, 0, false),
                          std::tuple(1, 1, true), std::tuple(2, 0, false)));
  EXPECT_THAT(Offered(parents, {}), ElementsAre(std::tuple(0, 0, false), std::tuple(0, 1, false)));
}

TEST(OfferedNodes, OfAChainAreThoseUpToTheFirstThatIsRejected) {
  EXPECT_THAT(Offered({-1, 0, 1, 2}, {0}), ElementsAre(std::tuple(0, 0, true), std::tuple(1, 0, false)));
  EXPECT_THAT(Offered({-1, 0}, {0, 1}), ElementsAre(std::tuple(0, 0, true), std::tuple(1, 0, true)));
  EXPECT_TRUE(Offered({}, {}).empty());
}

// ---- the choice

// A machine whose times are known, and a draft whose children are accepted with known probabilities.
struct TreeMachine {
  double verify_us = 400, row_us = 1;
  double step_us = 30, node_us = 1;  // for a step of the draft, and for each further node in it
  std::vector<double> stands = {0.6, 0.25, 0.05, 0.02};  // by the child's rank, whatever its siblings are

  double VerifySeconds(int nodes) const { return 1e-6 * (verify_us + row_us * (nodes + 1)); }
  double DraftSeconds(int nodes, int levels) const {
    return 1e-6 * (levels * step_us + node_us * (nodes - levels));
  }
  // Tokens a second with chains of the best length.
  double BestChain(int most) const {
    double best = 1 / VerifySeconds(0);
    for (int k = 1; k <= most; ++k) {
      best = std::max(best, ExpectedTokens(stands[0], k) / (VerifySeconds(k) + DraftSeconds(k, k)));
    }
    return best;
  }
};

Proposal Grow(const DraftLength& length) {
  Proposal tree;
  if (!length.tree) {
    for (int i = 0; i < length.most; ++i) AppendToChain(1, {}, tree);
    return tree;
  }
  std::vector<int> parents = {-1};
  for (int level = 0; level < length.most && !parents.empty(); ++level) {
    const std::vector<double> likely(parents.size(), 0.5);
    const std::vector<int> children = ChildrenOfLevel(*length.tree, level, length.most, likely);
    std::vector<int> next;
    for (size_t i = 0; i < parents.size(); ++i) {
      for (int child = 0; child < children[i]; ++child) {
        next.push_back(static_cast<int>(tree.size()));
        tree.push_back({.token = 1, .parent = parents[i], .q = {}});
      }
    }
    parents = std::move(next);
  }
  return tree;
}

class TreePolicyTest : public ::testing::Test {
 protected:
  static constexpr int kMost = 8;

  static Request MakeRequest() {
    Request request;
    request.prompt = {1};
    request.max_tokens = 1 << 20;
    request.draft_tokens = kMost;
    request.adaptive = true;
    request.chooses_tree = true;
    request.max_tree_nodes = 24;
    request.params.set_rule(v1::RULE_TOKEN);
    return request;
  }

  // Shares of the rounds of the second half, and their tokens a second as a share of the best chain's.
  struct Shares {
    double trees = 0, plain = 0, of_best_chain = 0;
  };
  Shares Run(const TreeMachine& machine, int rounds = 6000) {
    policy_.Begin();
    Shares shares;
    double tokens = 0, seconds = 0;
    for (int round = 0; round < rounds; ++round) {
      const DraftLength length = policy_.Choose(generation_);
      const Proposal proposal = Grow(length);
      const Verdict verdict = Judge(machine, proposal);
      const bool prompt = generation_.emitted() == 0;
      generation_.Commit(proposal, verdict);
      const RoundTimes times = TimesOf(machine, proposal);
      if (!prompt) Report(proposal, verdict, times);
      if (length.tree) largest_ = std::max(largest_, static_cast<int>(proposal.size()));
      if (round < rounds / 2) continue;
      shares.trees += (length.tree ? 2.0 : 0) / rounds;
      shares.plain += (proposal.empty() ? 2.0 : 0) / rounds;
      tokens += static_cast<double>(verdict.path.size()) + 1;
      seconds += Seconds(times.round);
    }
    policy_.End();
    shares.of_best_chain = tokens / seconds / machine.BestChain(kMost);
    return shares;
  }

  std::unique_ptr<Tokenizer> tokenizer_ = *Tokenizer::Load("tests/data/text/gpt2-small.tokenizer.json");
  Generation generation_{MakeRequest(), tokenizer_.get(), Clock::now()};
  DraftChoice policy_;
  int largest_ = 0;

 private:
  Verdict Judge(const TreeMachine& machine, const Proposal& proposal) {
    Verdict verdict;
    verdict.token = 1;
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      const int last = verdict.path.empty() ? -1 : verdict.path.back();
      double u = uniform_(random_);
      size_t rank = 0;
      for (size_t i = 0; i < proposal.size() && !goes_on; ++i) {
        if (proposal[i].parent != last || rank == machine.stands.size()) continue;
        u -= machine.stands[rank++];
        if (u >= 0) continue;
        verdict.path.push_back(static_cast<int>(i));
        goes_on = true;
      }
    }
    if (!proposal.empty()) verdict.kind = Verdict::Kind::kCorrected;
    return verdict;
  }

  static RoundTimes TimesOf(const TreeMachine& machine, const Proposal& proposal) {
    const int nodes = static_cast<int>(proposal.size()), levels = Depth(proposal);
    RoundTimes times;
    const auto fill = [](double seconds, int rows, v1::ItemTiming& timing) {
      timing.set_compute_us(static_cast<uint32_t>(seconds * 1e6));
      timing.set_batch_sequences(1);
      timing.set_batch_rows(static_cast<uint32_t>(rows));
    };
    const double verify = machine.VerifySeconds(nodes), draft = machine.DraftSeconds(nodes, levels);
    fill(verify, nodes + 1, times.verify_server);
    times.verify = Micros(verify * 1e6);
    if (nodes > 0) fill(draft, 1, times.draft_server);
    times.draft = Micros(draft * 1e6);
    times.round = times.verify + times.draft;
    return times;
  }

  void Report(const Proposal& proposal, const Verdict& verdict, const RoundTimes& times) {
    policy_.OnRound({.generation = &generation_,
                     .proposal = &proposal,
                     .verdict = &verdict,
                     .drafter = v1::DRAFTER_KIND_MODEL,
                     .draft_status = DraftStatus::kUsable,
                     .chosen = static_cast<int>(proposal.size()),
                     .emitted = static_cast<int>(verdict.path.size()) + 1,
                     .running = policy_.running(),
                     .proposal_bytes = 0,
                     .times = times});
  }

  std::mt19937 random_{5};
  std::uniform_real_distribution<double> uniform_;
};

TEST_F(TreePolicyTest, TreesAreDraftedWhereRowsCostLittleAndSiblingsStand) {
  const Shares shares = Run({});
  EXPECT_GT(shares.trees, 0.9);
  EXPECT_GT(shares.of_best_chain, 1.1);
  EXPECT_LE(largest_, 24);
}

TEST_F(TreePolicyTest, ChainsAreDraftedWhereRowsDecideAndTreesAreOnlyTried) {
  const Shares shares = Run({.row_us = 80, .node_us = 20});
  EXPECT_LT(shares.trees, 0.1);
  EXPECT_GT(shares.of_best_chain, 0.95);
}

TEST_F(TreePolicyTest, ChainsAreDraftedWhereFurtherSiblingsHardlyEverStand) {
  const Shares shares = Run({.row_us = 20, .stands = {0.85, 0.005, 0.005, 0.005}});
  EXPECT_LT(shares.trees, 0.1);
  EXPECT_GT(shares.of_best_chain, 0.95);
}

TEST_F(TreePolicyTest, NothingIsDraftedWhereNeitherPays) {
  const Shares shares = Run({.row_us = 100, .step_us = 900, .stands = {0.3, 0.1, 0.05, 0.02}});
  EXPECT_GT(shares.plain, 0.95);
  EXPECT_LT(shares.trees, 0.02);
  EXPECT_GT(shares.of_best_chain, 0.95);
}

TEST_F(TreePolicyTest, TheChoiceFollowsAMachineThatChanges) {
  EXPECT_LT(Run({.row_us = 80, .node_us = 20}).trees, 0.1);
  EXPECT_GT(Run({}, 20000).trees, 0.5);
}

TEST_F(TreePolicyTest, SeveralGenerationsDraftChains) {
  Run({});
  policy_.Begin();
  policy_.Begin();
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(policy_.Choose(generation_).tree.has_value());
}

// ---- the shape

// Reports a round for each accepted path of a tree with six nodes.
void Teach(const std::vector<std::vector<int>>& paths, TreeChoice& choice) {
  const Proposal tree = TreeOf({-1, -1, 0, 0, 1, 1});
  for (const std::vector<int>& path : paths) {
    Verdict verdict;
    verdict.path = path;
    RoundTimes times;
    times.round = Micros(500);
    choice.Observe({.generation = nullptr,
                    .proposal = &tree,
                    .verdict = &verdict,
                    .drafter = v1::DRAFTER_KIND_MODEL,
                    .draft_status = DraftStatus::kUsable,
                    .chosen = 2,
                    .emitted = static_cast<int>(path.size()) + 1,
                    .running = 1,
                    .proposal_bytes = 0,
                    .times = times});
  }
}

// The first tree that is tried; nullopt if none is worth it.
struct Tried {
  int nodes = 0, depth = 0;
};
std::optional<Tried> FirstTried(TreeChoice& choice, const TreeCosts& costs, double chain_rate, int depth = 4,
                                int nodes = 24) {
  for (int round = 0; round < 40; ++round) {
    if (const std::optional<DraftLength> length = choice.Next(chain_rate, costs, depth, nodes))
      return Tried{std::get<NodeBudget>(*length->tree).nodes, length->most};
  }
  return std::nullopt;
}

// Verifications of 200 us and this time for each row.
StepTime WithRowsOf(double seconds) {
  StepTime time;
  for (int i = 0; i < 100; ++i) {
    for (int rows = 1; rows <= 128; ++rows) time.Observe(rows, 200e-6 + seconds * rows);
  }
  return time;
}

const StepTime kCheapRows = WithRowsOf(1e-6);
const TreeCosts kCheap = {.verify = &kCheapRows, .round = 200e-6, .level = 30e-6, .node = 1e-6};

TEST(TreeChoice, ATreeIsLargerWhereSecondChildrenStand) {
  const StepTime rows = WithRowsOf(10e-6);
  const TreeCosts costs = {.verify = &rows, .round = 200e-6, .level = 30e-6, .node = 1e-6};
  TreeChoice often, hardly;
  std::vector<std::vector<int>> second_stands, first_stands;
  for (int i = 0; i < 50; ++i) {
    second_stands.insert(second_stands.end(), {{0, 2}, {1, 5}, {0, 3}, {1, 4}});
    first_stands.insert(first_stands.end(), {{0, 2}, {0, 2}, {0, 2}, {0, 3}});
  }
  Teach(second_stands, often);
  Teach(first_stands, hardly);
  const auto large = FirstTried(often, costs, 1000), small = FirstTried(hardly, costs, 1000);
  ASSERT_TRUE(large.has_value() && small.has_value());
  EXPECT_GT(large->nodes, small->nodes);
}

TEST(TreeChoice, ATreeIsAsDeepAsTheDraftIsCheap) {
  TreeChoice choice;
  EXPECT_EQ(FirstTried(choice, kCheap, 1000)->depth, 4);
  TreeChoice slow_draft;
  EXPECT_EQ(FirstTried(slow_draft, {.verify = &kCheapRows, .round = 200e-6, .level = 1000e-6}, 1)->depth, 1);
}

TEST(TreeChoice, ATreeKeepsItsLimits) {
  for (const auto& [depth, nodes] : {std::pair(1, 24), {2, 5}, {3, 4}, {8, 64}}) {
    TreeChoice choice;
    const auto tree = FirstTried(choice, kCheap, 1000, depth, nodes);
    ASSERT_TRUE(tree.has_value()) << depth << " " << nodes;
    EXPECT_LE(tree->nodes, nodes);
    EXPECT_LE(tree->depth, depth);
  }
  TreeChoice one_node;
  EXPECT_FALSE(FirstTried(one_node, kCheap, 1000, 4, 1).has_value()) << "that would be a chain";
}

TEST(TreeChoice, NothingIsTriedThatPromisesLessThanTheChain) {
  TreeChoice choice;
  EXPECT_FALSE(FirstTried(choice, kCheap, 1e6).has_value());
}

}  // namespace
}  // namespace outrider
