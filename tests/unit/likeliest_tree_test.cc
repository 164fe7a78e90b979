// Trees of the likeliest tokens, which are taken and not drawn: which nodes they have, and that texts keep
// the target's distribution.
#include "common/spec/likeliest_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "common/spec/verify.h"
#include "tests/unit/spec_law.h"
#include "tests/unit/spec_testing.h"

namespace outrider {
namespace {

// The row of a draft at temperature 0, with its logits.
struct GreedyRow {
  std::vector<float> logits;
  WeightRow row() const {
    return {
        .point_mass = static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin()),
        .logits = logits};
  }
};

GreedyRow RowOf(const Model& draft, const Tokens& context) {
  GreedyRow greedy;
  for (TokenId x = 0; x < kVocab; ++x) {
    greedy.logits.push_back(static_cast<float>(std::log(draft.Row(context)(x))));
  }
  return greedy;
}

Tokens PathOf(const Proposal& tree, int node) {
  Tokens tokens;
  for (; node >= 0; node = tree[static_cast<size_t>(node)].parent)
    tokens.insert(tokens.begin(), tree[static_cast<size_t>(node)].token);
  return tokens;
}

struct Grown {
  Proposal tree;
  int expanded = 0;
};

// Grows a tree level by level, as DrawLevel and AppendLevel do.
Grown Grow(const Model& draft, const Tokens& context, int nodes, int depth) {
  Grown grown;
  Proposal& tree = grown.tree;
  std::vector<int> parents = {-1};
  for (int level = 0; level < depth && !parents.empty(); ++level) {
    const Proposal before = tree;
    for (const int parent : parents) {
      const GreedyRow greedy = RowOf(draft, Join(context, PathOf(before, parent)));
      PhiloxNoise none({}, 0);
      std::vector<ProposalNode> children =
          ProposeSiblings({.count = kVocab}, greedy.row(), {}, context.size(), tree.size(), none);
      SetValues(greedy.row(), 1, parent < 0 ? 0 : before[static_cast<size_t>(parent)].path_log_probability,
                children);
      for (ProposalNode& child : children) {
        child.parent = parent;
        tree.push_back(std::move(child));
      }
    }
    KeepLikeliest(nodes, tree);
    EXPECT_LE(tree.size(), static_cast<size_t>(nodes));
    const std::vector<int> depths = Depths(tree);
    const auto kept = std::count(depths.begin(), depths.end(), level);
    parents =
        level + 1 < depth ? NodesToExpand(tree, static_cast<int>(kept), nodes, depth) : std::vector<int>();
    grown.expanded += static_cast<int>(parents.size());
  }
  return grown;
}

std::set<Tokens> PathsOf(const Proposal& tree) {
  std::set<Tokens> paths;
  for (int node = 0; node < std::ssize(tree); ++node) paths.insert(PathOf(tree, node));
  return paths;
}

// The likeliest of all paths up to a depth.
std::set<Tokens> LikeliestPaths(const Model& draft, int nodes, int depth) {
  std::vector<std::pair<double, Tokens>> paths;
  for (int length = 1; length <= depth; ++length) {
    for (const Tokens& tokens : Sequences(length)) paths.emplace_back(-TargetLaw(draft, {}, tokens), tokens);
  }
  std::sort(paths.begin(), paths.end());
  std::set<Tokens> likeliest;
  for (const auto& [probability, tokens] : paths) {
    if (std::ssize(likeliest) < nodes && probability < 0) likeliest.insert(tokens);
  }
  return likeliest;
}

TEST(LikeliestTree, HasTheNodesOfHighestValueOfAllThatThereCouldBe) {
  std::mt19937 random(5);
  for (int turn = 0; turn < 20; ++turn) {
    const Model draft(Model::Kind::kAnything, random);
    for (const int nodes : {1, 2, 3, 5, 8, 12}) {
      EXPECT_EQ(PathsOf(Grow(draft, {}, nodes, 2).tree), LikeliestPaths(draft, nodes, 2)) << nodes;
    }
    // Here the levels are so narrow that each of their nodes can be expanded.
    EXPECT_EQ(PathsOf(Grow(draft, {}, 18, 3).tree), LikeliestPaths(draft, 18, 3));
  }
}

TEST(LikeliestTree, KeepsParentsBeforeTheirChildrenAndTheOrderOfTheOthers) {
  const auto node = [](TokenId token, int parent, double value) {
    ProposalNode it = {.token = token, .parent = parent, .q = {}};
    it.path_log_probability = value;
    return it;
  };
  Proposal tree = {node(0, -1, -1), node(1, -1, -5), node(2, -1, -2), node(3, 0, -3),
                   node(4, 1, -6),  node(5, 2, -4),  node(6, 2, -4),  node(7, 5, -4)};
  KeepLikeliest(5, tree);
  std::vector<std::pair<TokenId, int>> kept;
  for (const ProposalNode& it : tree) kept.emplace_back(it.token, it.parent);
  EXPECT_EQ(kept, (std::vector<std::pair<TokenId, int>>{{0, -1}, {2, -1}, {3, 0}, {5, 1}, {6, 1}}));
  // The last two have the least value, which no child exceeds.
  EXPECT_TRUE(NodesToExpand(tree, 2, 5, 4).empty());
  EXPECT_EQ(NodesToExpand(tree, 3, 5, 4), (std::vector<int>{2}));
  EXPECT_EQ(NodesToExpand(tree, 3, 6, 2), (std::vector<int>{2, 3, 4})) << "there is room for one more";
  EXPECT_EQ(NodesToExpand(tree, 3, 6, 4), (std::vector<int>{2, 3})) << "two rows in each of three levels";
}

TEST(LikeliestTree, ExpandsNoMoreNodesThanItMayHave) {
  std::mt19937 random(7);
  for (int turn = 0; turn < 20; ++turn) {
    const Model draft(Model::Kind::kWithZeros, random);
    for (int nodes = 1; nodes <= 12; ++nodes) {
      for (int depth = 1; depth <= 6; ++depth) {
        const Grown grown = Grow(draft, {}, nodes, depth);
        EXPECT_LE(grown.expanded, nodes);
        EXPECT_GE(grown.tree.size(), 1u);
      }
    }
  }
}

TEST(LikeliestTree, TakesNoTokenThatIsMasked) {
  const float masked = -std::numeric_limits<float>::infinity();
  const GreedyRow greedy{{1.0f, masked, 1.0f}};
  std::vector<ProposalNode> children = {{.token = 0, .q = {}}, {.token = 2, .q = {}}, {.token = 1, .q = {}}};
  SetValues(greedy.row(), 1, -1, children);
  ASSERT_EQ(children.size(), 2u);
  EXPECT_NEAR(children[0].path_log_probability, -1 + std::log(0.5), 1e-6);
  EXPECT_NEAR(children[1].path_log_probability, -1 + std::log(0.5), 1e-6);
}

TEST(LikeliestTree, ValuesFollowTheTextsTemperatureAndTheLeastOne) {
  const GreedyRow greedy{{1.0f, 0.0f, -1.0f}};
  for (const auto& [temperature, of_softmax] :
       {std::pair(2.0, 2.0), std::pair(1.0, 1.0), std::pair(0.0, kLeastValueTemperature)}) {
    std::vector<ProposalNode> children = {{.token = 0, .q = {}}, {.token = 1, .q = {}}};
    SetValues(greedy.row(), temperature, 0, children);
    const double total = 1 + std::exp(-1 / of_softmax) + std::exp(-2 / of_softmax);
    EXPECT_NEAR(children[0].path_log_probability, -std::log(total), 1e-6);
    EXPECT_NEAR(children[1].path_log_probability, -1 / of_softmax - std::log(total), 1e-6);
  }
}

// The largest deviation of texts from the target's law, with trees that `change` has changed.
double WorstDeviation(int nodes, int depth, const std::function<void(const Model&, Proposal&)>& change) {
  double worst = 0;
  for (const Pair& pair : Pairs(3)) {
    const auto text = [&](Enumerator& noise) {
      Proposal tree = Grow(pair.draft, {}, nodes, depth).tree;
      change(pair.draft, tree);
      const auto rows = [&](int i) -> absl::StatusOr<WeightRow> {
        return pair.target.Row(PathOf(tree, i - 1));
      };
      const absl::StatusOr<Verdict> verdict = Verify({}, tree, rows, 0, noise);
      return Join(PathOf(tree, verdict->path.empty() ? -1 : verdict->path.back()), {verdict->token});
    };
    worst = std::max(worst, JointDeviation(text, pair.target, 3));
  }
  return worst;
}

TEST(LikeliestTree, GivesTextsTheTargetsDistribution) {
  for (const int nodes : {1, 2, 3, 5, 7}) {
    for (const int depth : {1, 2, 3}) {
      EXPECT_LT(WorstDeviation(nodes, depth, [](const Model&, Proposal&) {}), kExact)
          << nodes << " " << depth;
    }
  }
}

// The negative control: each token that was taken reports a q as if it were drawn from the softmax.
TEST(LikeliestTree, ReportedWithTheSoftmaxIsNoticed) {
  const auto softmax = [](const Model& draft, Proposal& tree) {
    for (int i = 0; i < std::ssize(tree); ++i) {
      ProposalNode& node = tree[static_cast<size_t>(i)];
      node.q = TruncateTopN(draft.Row(PathOf(tree, node.parent)), 0);
    }
  };
  for (const int nodes : {1, 2, 5}) EXPECT_GT(WorstDeviation(nodes, 2, softmax), 0.1) << nodes;
}

}  // namespace
}  // namespace outrider
