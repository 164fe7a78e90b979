// The text of rounds with trees has the target's distribution: exact enumeration over several rounds, and
// mistakes that must be noticed.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <numeric>

#include "common/spec/likeliest_tree.h"
#include "common/spec/tree_shape.h"
#include "common/spec/verify.h"
#include "tests/unit/spec_law.h"
#include "tests/unit/spec_testing.h"

namespace outrider {
namespace {

// A change that is made to a tree between the draft and the verification.
using Change = std::function<void(Proposal&)>;

struct TreeRound {
  TreeShape shape;
  int depth = 2;
  SiblingOrder order = SiblingOrder::kGiven;
  int top_n = 0;
  Change change = [](Proposal&) {};

  Tokens Path(const Proposal& tree, int node) const {
    Tokens tokens;
    for (; node >= 0; node = tree[static_cast<size_t>(node)].parent)
      tokens.insert(tokens.begin(), tree[static_cast<size_t>(node)].token);
    return tokens;
  }

  // Drafts level by level, as the draft does.
  Proposal Draft(const Pair& pair, const Tokens& context, Noise& noise) const {
    Proposal tree;
    std::vector<int> parents = {-1};
    std::vector<double> likely = {1};
    for (int level = 0; level < depth && !parents.empty(); ++level) {
      const std::vector<int> children = ChildrenOfLevel(shape, level, depth, likely);
      std::vector<int> next;
      std::vector<double> next_likely;
      for (size_t i = 0; i < parents.size(); ++i) {
        const WeightRow row = pair.draft.Row(Join(context, Path(tree, parents[i])));
        const SiblingDraw draw{.rule = Rule::kToken,
                               .top_n = top_n,
                               .count = children[i],
                               .independent = std::holds_alternative<Chains>(shape)};
        for (ProposalNode& child : ProposeSiblings(draw, row, {}, context.size() + static_cast<size_t>(level),
                                                   tree.size(), noise)) {
          next.push_back(static_cast<int>(tree.size()));
          next_likely.push_back(likely[i] * row(child.token));
          child.parent = parents[i];
          tree.push_back(std::move(child));
        }
      }
      parents = std::move(next);
      likely = std::move(next_likely);
    }
    return tree;
  }

  Tokens operator()(const Pair& pair, const Tokens& context, Enumerator& noise,
                    double* surplus = nullptr) const {
    noise.StartRound(context.size());
    Proposal tree = Draft(pair, context, noise);
    change(tree);
    const auto rows = [&](int i) -> absl::StatusOr<WeightRow> {
      return pair.target.Row(Join(context, Path(tree, i - 1)));
    };
    const absl::StatusOr<Verdict> verdict =
        Verify({.sibling_order = order}, tree, rows, context.size(), noise);
    EXPECT_TRUE(verdict.ok()) << verdict.status();
    if (!verdict.ok()) return {};
    if (surplus != nullptr) {
      *surplus +=
          noise.probability() * (static_cast<double>(verdict->path.size()) - verdict->expected_accepted);
    }
    return Join(Path(tree, verdict->path.empty() ? -1 : verdict->path.back()), {verdict->token});
  }
};

// The deviation of several rounds of one sequence. They share no noise, and each depends on the context only
// through the models' state.
double Deviation(const TreeRound& round, const Pair& pair, int rounds = 2, size_t length = 3) {
  std::map<int, Law> after;
  Law law = {{{}, 1.0}};
  for (int r = 0; r < rounds; ++r) {
    Law next;
    for (const auto& [context, probability] : law) {
      const int state = Model::StateOf(context);
      Law& of_state = after[state];
      if (of_state.empty()) {
        Enumerator noise;
        noise.ForEachPath([&] {
          const Tokens emitted = round(pair, {state / kVocab, state % kVocab}, noise);
          of_state[emitted] += noise.probability();
        });
        EXPECT_FALSE(noise.reused()) << "no number may be used twice in a round";
      }
      for (const auto& [emitted, p] : of_state) {
        Tokens longer = Join(context, emitted);
        longer.resize(std::min(longer.size(), length));
        next[longer] += probability * p;
      }
    }
    law = std::move(next);
  }
  return outrider::Deviation(law, pair.target, static_cast<int>(length));
}

double WorstDeviation(const TreeRound& round, int ordinary = 1) {
  double worst = 0;
  for (const Pair& pair : Pairs(ordinary)) worst = std::max(worst, Deviation(round, pair));
  return worst;
}

TEST(ExactnessOfTrees, OfEveryShape) {
  for (const char* shape : {"2", "3", "2x1", "1x2", "2x2", "3x1", "2x3", "3x2", "chains:2", "chains:3",
                            "budget:3", "budget:4", "budget:6"}) {
    EXPECT_LT(WorstDeviation({.shape = *ParseTreeShape(shape)}), kExact) << shape;
  }
}

TEST(ExactnessOfTrees, OfThreeLevelsAndThreeRounds) {
  for (const char* shape : {"2x1x1", "1x2x1", "budget:5"}) {
    const TreeRound round{.shape = *ParseTreeShape(shape), .depth = 3};
    for (const Pair& pair : Pairs(1)) EXPECT_LT(Deviation(round, pair, 3, 6), kExact) << shape;
  }
}

TEST(ExactnessOfTrees, OfATruncatedDraft) {
  for (const char* shape : {"2x2", "3x2", "chains:2"}) {
    EXPECT_LT(WorstDeviation({.shape = *ParseTreeShape(shape), .top_n = 2}), kExact) << shape;
  }
}

TEST(ExactnessOfTrees, OfIndependentDrawsInARandomOrder) {
  for (const int count : {2, 3}) {
    EXPECT_LT(WorstDeviation({.shape = Chains{count}, .order = SiblingOrder::kRandom}), kExact) << count;
  }
}

TEST(ExactnessOfTrees, OfIndependentDrawsFromDifferentQInAnyOrder) {
  std::mt19937 random(23);
  for (const Pair& pair : Pairs(3)) {
    const Model other(Model::Kind::kWithZeros, random);
    for (const SiblingOrder order : {SiblingOrder::kGiven, SiblingOrder::kRandom}) {
      const auto text = [&](Enumerator& noise) {
        Proposal tree;
        for (const Model* model : {&pair.draft, &other}) {
          const Distribution q = TruncateTopN(model->Row({}), 0);
          const TokenId token =
              noise.Decide(Purpose::kDraft, 0, tree.size(), [&](double u) { return Sample(q, u); });
          tree.push_back({token, -1, q});
        }
        const auto rows = [&](int i) -> absl::StatusOr<WeightRow> {
          return pair.target.Row(i == 0 ? Tokens{} : Tokens{tree[static_cast<size_t>(i) - 1].token});
        };
        const absl::StatusOr<Verdict> verdict = Verify({.sibling_order = order}, tree, rows, 0, noise);
        Tokens tokens;
        for (int node : verdict->path) tokens.push_back(tree[static_cast<size_t>(node)].token);
        return Join(tokens, {verdict->token});
      };
      EXPECT_LT(JointDeviation(text, pair.target, 2), kExact);
    }
  }
}

TEST(ExactnessOfTrees, OfTokensThatWereTakenInAnyOrder) {
  const auto take = [](Proposal& tree) {
    for (ProposalNode& node : tree) node.q = PointMass(node.token);
  };
  // Tokens 0 and 1 are taken here, so that the choice depends on nothing that is drawn.
  const auto fixed = [&](Proposal& tree) {
    for (size_t i = 0; i < tree.size(); ++i) tree[i].token = static_cast<TokenId>(i % 2);
    take(tree);
  };
  for (const SiblingOrder order : {SiblingOrder::kGiven, SiblingOrder::kRandom}) {
    EXPECT_LT(WorstDeviation({.shape = *ParseTreeShape("2"), .order = order, .change = fixed}), kExact);
  }
}

TEST(ExactnessOfTrees, AcceptedNodesAreAsManyAsExpected) {
  for (const char* shape : {"2x2", "chains:2"}) {
    for (const Pair& pair : Pairs(2)) {
      const TreeRound round{.shape = *ParseTreeShape(shape)};
      double surplus = 0;
      Enumerator noise;
      noise.ForEachPath([&] { round(pair, {0, 1}, noise, &surplus); });
      EXPECT_NEAR(surplus, 0, 1e-9) << shape;
    }
  }
}

// ---- mistakes

Distribution WholeRow(const ProposalNode& first) { return first.q; }

TEST(ExactnessOfTrees, TheUnreducedQOfASecondSiblingIsNoticed) {
  const auto unreduced = [](Proposal& tree) { tree[1].q = tree.size() > 1 ? WholeRow(tree[0]) : tree[1].q; };
  double worst = 0;
  for (const Pair& pair : Pairs(3)) {
    const TreeRound round{.shape = *ParseTreeShape("2"), .change = [&](Proposal& tree) {
                            if (tree.size() > 1) unreduced(tree);
                          }};
    worst = std::max(worst, Deviation(round, pair));
  }
  EXPECT_GT(worst, kNoticed);
}

// The two likeliest tokens are taken, as in EAGLE-2's trees, with the q that siblings report if drawn.
TEST(ExactnessOfTrees, TakenTokensReportedWithTheSoftmaxAreNoticed) {
  for (const bool point_masses : {true, false}) {
    double worst = 0;
    for (const Pair& pair : Pairs(3)) {
      const auto text = [&](Enumerator& noise) {
        Distribution q = TruncateTopN(pair.draft.Row({}), 0);
        Proposal tree;
        while (tree.size() < 2 && SumWeights(q.weights) > 0) {
          const size_t best = static_cast<size_t>(FindMax(q.weights).index);
          const TokenId token = q.ids.empty() ? static_cast<TokenId>(best) : q.ids[best];
          q.total = SumWeights(q.weights);
          tree.push_back({token, -1, point_masses ? PointMass(token) : q});
          q.weights[best] = 0;
        }
        const auto rows = [&](int i) -> absl::StatusOr<WeightRow> {
          return pair.target.Row(i == 0 ? Tokens{} : Tokens{tree[static_cast<size_t>(i) - 1].token});
        };
        const absl::StatusOr<Verdict> verdict = Verify({}, tree, rows, 0, noise);
        Tokens tokens;
        for (int node : verdict->path) tokens.push_back(tree[static_cast<size_t>(node)].token);
        return Join(tokens, {verdict->token});
      };
      worst = std::max(worst, JointDeviation(text, pair.target, 2));
    }
    if (point_masses) {
      EXPECT_LT(worst, kExact);
    } else {
      EXPECT_GT(worst, 0.1);
    }
  }
}

// The second sibling is judged by max(p - q, 0), whose mass is below 1, and not by the normalised residual.
// That is as if its own q were divided by that mass.
TEST(ExactnessOfTrees, NotRenormalisingAfterARejectionIsNoticed) {
  const TreeRound round{.shape = *ParseTreeShape("2"), .depth = 1};
  for (const bool renormalised : {true, false}) {
    double worst = 0;
    for (const Pair& pair : Pairs(3)) {
      const auto text = [&](Enumerator& noise) {
        Proposal tree = round.Draft(pair, {}, noise);
        const double left = 1 - Overlap(pair.target.Row({}), tree[0].q);
        if (tree.size() > 1 && left > 0 && !renormalised) tree[1].q.total *= left;
        const auto rows = [&](int i) -> absl::StatusOr<WeightRow> {
          return pair.target.Row(round.Path(tree, i - 1));
        };
        const absl::StatusOr<Verdict> verdict = Verify({}, tree, rows, 0, noise);
        return Join(round.Path(tree, verdict->path.empty() ? -1 : verdict->path[0]), {verdict->token});
      };
      worst = std::max(worst, JointDeviation(text, pair.target, 2));
    }
    if (renormalised) {
      EXPECT_LT(worst, kExact);
    } else {
      EXPECT_GT(worst, kNoticed);
    }
  }
}

TEST(ExactnessOfTrees, TheLikelierOfTwoSamplesIsNoticed) {
  const auto keep_likelier = [](Proposal& tree) {
    if (tree.size() < 2) return;
    if (tree[1].q(tree[1].token) > tree[0].q(tree[0].token)) std::swap(tree[0], tree[1]);
    tree.resize(1);
  };
  EXPECT_GT(WorstDeviation({.shape = Chains{2}, .depth = 1, .change = keep_likelier}, 3), kNoticed);
}

TEST(ExactnessOfTrees, SiblingsSortedByProbabilityAreNoticed) {
  const auto sort = [](Proposal& tree) {
    if (tree.size() > 1 && tree[0].q(tree[1].token) > tree[0].q(tree[0].token)) std::swap(tree[0], tree[1]);
  };
  EXPECT_GT(WorstDeviation({.shape = *ParseTreeShape("2"), .change = sort}, 3), kNoticed);
}

TEST(ExactnessOfTrees, ARandomOrderOfDrawsWithoutReplacementIsNoticed) {
  EXPECT_GT(WorstDeviation({.shape = *ParseTreeShape("2"), .order = SiblingOrder::kRandom}, 3), kNoticed);
}

// Uses one number for all nodes at a position.
class OneCandidate final : public Noise {
 public:
  explicit OneCandidate(Enumerator& noise) : noise_(noise) {}
  int Decide(Purpose purpose, uint64_t position, uint64_t, absl::FunctionRef<int(double)> step) override {
    return noise_.Decide(purpose, position, 0, step);
  }
  TokenId Race(uint64_t position, const WeightRow& row) override { return noise_.Race(position, row); }

 private:
  Enumerator& noise_;
};

TEST(ExactnessOfTrees, OneNumberForTwoSiblingsIsNoticed) {
  const TreeRound round{.shape = Chains{2}, .depth = 1};
  for (const bool of_draws : {true, false}) {
    double worst = 0;
    for (const Pair& pair : AllPairs(40)) {
      const auto text = [&](Enumerator& noise) {
        OneCandidate shared(noise);
        const Proposal tree = of_draws ? round.Draft(pair, {}, shared) : round.Draft(pair, {}, noise);
        const auto rows = [&](int i) -> absl::StatusOr<WeightRow> {
          return pair.target.Row(round.Path(tree, i - 1));
        };
        Noise& tests = of_draws ? static_cast<Noise&>(noise) : shared;
        const absl::StatusOr<Verdict> verdict = Verify({}, tree, rows, 0, tests);
        return Tokens{verdict->path.empty() ? verdict->token
                                            : tree[static_cast<size_t>(verdict->path[0])].token};
      };
      worst = std::max(worst, JointDeviation(text, pair.target, 1));
    }
    EXPECT_GT(worst, kNoticed) << (of_draws ? "draws" : "tests");
  }
}

// ---- what needs no enumeration

TEST(VerifyTrees, AGreedyTargetWalksAlongItsArgmax) {
  const std::vector<std::vector<float>> logits = {{0, 1, 0}, {2, 0, 0}, {0, 0, 3}};
  const Proposal tree = {{0, -1, PointMass(0)},
                         {1, -1, Dense({.4f, .6f, 0})},
                         {1, 0, PointMass(1)},
                         {2, 1, Dense({.7f, 0, .3f})},
                         {0, 1, Dense({.7f, 0, .3f})}};
  for (SiblingOrder order : {SiblingOrder::kGiven, SiblingOrder::kRandom}) {
    PhiloxNoise noise({1, 2}, 0);
    int row = 0;
    const auto verdict = Verify(
        {.sibling_order = order}, tree,
        [&](int) -> absl::StatusOr<WeightRow> { return Greedy(logits[row++]); }, 0, noise);
    ASSERT_TRUE(verdict.ok()) << verdict.status();
    EXPECT_EQ(verdict->path, (std::vector<int>{1, 4}));
    EXPECT_EQ(verdict->token, 2);
    EXPECT_EQ(verdict->kind, Verdict::Kind::kBonus);
  }
}

TEST(VerifyTrees, TheCoupledRuleWalksAlongTheRace) {
  std::mt19937 random(3);
  const Model target(Model::Kind::kAnything, random);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const RandomKey key{seed, 0};
    PhiloxNoise noise(key, 0);
    const TokenId first = Race(target.Row({}), key, 0);
    const Proposal tree = {
        {(first + 1) % kVocab, -1, {}}, {first, -1, {}}, {0, 1, {}}, {1, 1, {}}, {2, 1, {}}};
    const auto path = [&](int node) {
      return node < 0 ? Tokens{} : node < 2 ? Tokens{tree[node].token} : Tokens{first, tree[node].token};
    };
    const auto verdict = Verify(
        {.rule = Rule::kCoupled}, tree,
        [&](int i) -> absl::StatusOr<WeightRow> { return target.Row(path(i - 1)); }, 0, noise);
    ASSERT_TRUE(verdict.ok()) << verdict.status();
    const TokenId second = Race(target.Row({first}), key, 1);
    EXPECT_EQ(verdict->path, (std::vector<int>{1, 2 + second}));
    EXPECT_EQ(verdict->token, Race(target.Row({first, second}), key, 2));
    EXPECT_EQ(verdict->log_probabilities.size(), 3u);
  }
}

TEST(VerifyTrees, ABlockRuleAndLenienceAreForChains) {
  PhiloxNoise noise({1, 2}, 0);
  const auto rows = [](int) -> absl::StatusOr<WeightRow> { return absl::InternalError("not reached"); };
  const Proposal tree = {{0, -1, PointMass(0)}, {1, -1, PointMass(1)}};
  for (const VerifyOptions& options : {VerifyOptions{.rule = Rule::kBlock}, VerifyOptions{.lenience = .5}}) {
    EXPECT_EQ(Verify(options, tree, rows, 0, noise).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(VerifyTrees, AnOnlyChildUnderTheCoupledRuleIsTheRacesWinner) {
  std::mt19937 random(3);
  const Model draft(Model::Kind::kAnything, random);
  const WeightRow row = draft.Row({});
  PhiloxNoise noise({5, 0}, 0);
  const auto only = ProposeSiblings({.rule = Rule::kCoupled, .count = 1}, row, {5, 0}, 0, 0, noise);
  ASSERT_EQ(only.size(), 1u);
  EXPECT_EQ(only[0].token, Race(row, {5, 0}, 0));
}

TEST(TreeShape, IsReadAndWritten) {
  for (const char* text : {"1", "3", "2x2x1", "chains:4", "budget:12"}) {
    const auto shape = ParseTreeShape(text);
    ASSERT_TRUE(shape.ok()) << text;
    EXPECT_EQ(FormatTreeShape(*shape), text);
  }
  for (const char* text :
       {"", "0", "x", "2x", "2x0", "-1", "chains:", "chains:0", "budget:-3", "2 x 2", "9999999999"}) {
    EXPECT_FALSE(ParseTreeShape(text).ok()) << text;
  }
  EXPECT_EQ(MaxNodes(*ParseTreeShape("2x2x1"), 3), 2 + 4 + 4);
  EXPECT_EQ(MaxNodes(*ParseTreeShape("2x2x1"), 2), 2 + 4);
  EXPECT_EQ(MaxNodes(*ParseTreeShape("chains:3"), 4), 12);
}

TEST(TreeShape, ABudgetIsSpentAndNotMore) {
  for (int budget = 1; budget <= 20; ++budget) {
    for (int depth = 1; depth <= 5; ++depth) {
      std::vector<double> likely = {1};
      int spent = 0;
      for (int level = 0; level < depth; ++level) {
        const std::vector<int> children = ChildrenOfLevel(NodeBudget{budget}, level, depth, likely);
        const int drawn = std::accumulate(children.begin(), children.end(), 0);
        spent += drawn;
        likely.assign(static_cast<size_t>(drawn), 0.5);
      }
      EXPECT_LE(spent, budget);
      EXPECT_LE(spent, MaxNodes(NodeBudget{budget}, depth));
      EXPECT_GE(spent, std::min(budget, depth));
    }
  }
}

// The number of nodes on each level of the tree that the likeliest paths of ranks make.
std::vector<int> SizesOfLikeliest(int nodes, int depth) {
  std::vector<std::pair<double, int>> paths;  // minus the probability of acceptance, level
  std::vector<double> level = {1};
  for (int l = 0; l < depth; ++l) {
    std::vector<double> next;
    for (const double stands : level) {
      for (int rank = 0; rank < kMaxBudgetChildren; ++rank) next.push_back(stands * ChildStands(rank));
    }
    for (const double stands : next) paths.emplace_back(-stands, l);
    level = std::move(next);
  }
  std::sort(paths.begin(), paths.end());
  std::vector<int> sizes(static_cast<size_t>(depth), 0);
  for (int i = 0; i < nodes; ++i) ++sizes[static_cast<size_t>(paths[static_cast<size_t>(i)].second)];
  return sizes;
}

TEST(TreeShape, ABudgetIsTheTreeOfTheLikeliestNodes) {
  for (const int budget : {4, 8, 16, 33}) {
    const int depth = 4;
    std::vector<int> sizes;
    std::vector<double> stands = {1};
    for (int level = 0; level < depth; ++level) {
      const std::vector<int> children = ChildrenOfLevel(NodeBudget{budget}, level, depth, stands);
      std::vector<double> next;
      for (size_t parent = 0; parent < children.size(); ++parent) {
        for (int rank = 0; rank < children[parent]; ++rank)
          next.push_back(stands[parent] * ChildStands(rank));
      }
      sizes.push_back(static_cast<int>(next.size()));
      stands = std::move(next);
    }
    EXPECT_EQ(sizes, SizesOfLikeliest(budget, depth)) << budget;
  }
}

TEST(TreeShape, ABudgetGoesWhereItIsLikelyToStand) {
  const std::vector<double> unlike = {0.4, 0.001};
  EXPECT_EQ(ChildrenOfLevel(NodeBudget{16}, 3, 4, unlike)[1], 0) << "what hardly stands needs no children";
}

}  // namespace
}  // namespace outrider
