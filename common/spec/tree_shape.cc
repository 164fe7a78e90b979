#include "common/spec/tree_shape.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <queue>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

// The chance that each later child is accepted if the first is not (ChildStands).
constexpr std::array<double, kMaxBudgetChildren - 1> kLaterStand = {0.28,  0.115, 0.068, 0.047,
                                                                    0.033, 0.026, 0.016};

absl::Status ParseError(absl::string_view text) {
  return FieldError("tree", "\"2x2x1\", \"chains:3\" or \"budget:12\", each number at least 1",
                    absl::StrCat("\"", text, "\" is no shape"));
}

bool ParseCount(absl::string_view text, int& count) {
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == absl::string_view::npos;
  return digits && absl::SimpleAtoi(text, &count) && count >= 1;
}

// A node that may join the tree: the next child of its parent.
struct Candidate {
  double stands = 0;  // the chance that its path is accepted
  int parent = 0;
  int rank = 0;
  // The order of the heap: likelier first, and among equals the one with the earlier parent.
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return a.stands != b.stands ? a.stands < b.stands : a.parent > b.parent;
  }
};
using Candidates = std::priority_queue<Candidate>;

// Hands out children one by one, each to the parent whose next child is likeliest to be accepted.
std::vector<int> ShareOut(int nodes, std::span<const double> stands) {
  std::vector<int> children(stands.size(), 0);
  Candidates candidates;
  const auto offer = [&](int parent) {
    const auto p = static_cast<size_t>(parent);
    if (children[p] == kMaxBudgetChildren) return;
    candidates.push({stands[p] * ChildStands(children[p]), parent, children[p]});
  };
  for (int parent = 0; parent < std::ssize(stands); ++parent) offer(parent);
  for (; nodes > 0 && !candidates.empty(); --nodes) {
    const int parent = candidates.top().parent;
    candidates.pop();
    ++children[static_cast<size_t>(parent)];
    offer(parent);
  }
  return children;
}

}  // namespace

absl::StatusOr<TreeShape> ParseTreeShape(absl::string_view text) {
  absl::string_view number = text;
  int count = 0;
  if (absl::ConsumePrefix(&number, "chains:")) {
    if (!ParseCount(number, count)) return ParseError(text);
    return Chains{count};
  }
  if (absl::ConsumePrefix(&number, "budget:")) {
    if (!ParseCount(number, count)) return ParseError(text);
    return NodeBudget{count};
  }
  Branching branching;
  for (absl::string_view level : absl::StrSplit(text, 'x')) {
    if (!ParseCount(level, count)) return ParseError(text);
    branching.children.push_back(count);
  }
  if (std::ssize(branching.children) > kMaxBranchingLevels) return ParseError(text);
  return branching;
}

std::string FormatTreeShape(const TreeShape& shape) {
  return std::visit(
      Overloaded{[](const Branching& b) { return absl::StrJoin(b.children, "x"); },
                 [](const Chains& chains) { return absl::StrCat("chains:", chains.count); },
                 [](const NodeBudget& budget) { return absl::StrCat("budget:", budget.nodes); }},
      shape);
}

double ChildStands(int rank, double first_stands) {
  if (rank == 0) return first_stands;
  return (1 - first_stands) * (rank < kMaxBudgetChildren ? kLaterStand[static_cast<size_t>(rank - 1)] : 0);
}

std::vector<LikelyNode> LikeliestNodes(int nodes, int depth) {
  std::vector<LikelyNode> tree;
  std::vector<double> stands;
  Candidates candidates;
  const auto offer = [&](int parent, int rank) {
    const bool is_full = rank == kMaxBudgetChildren || (parent >= 0 && tree[parent].level + 1 == depth);
    const double parent_stands = parent < 0 ? 1 : stands[parent];
    if (!is_full) candidates.push({parent_stands * ChildStands(rank), parent, rank});
  };
  offer(-1, 0);
  while (std::ssize(tree) < nodes && !candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    tree.push_back({best.parent, best.rank, best.parent < 0 ? 0 : tree[best.parent].level + 1});
    stands.push_back(best.stands);
    offer(best.parent, best.rank + 1);
    offer(static_cast<int>(tree.size()) - 1, 0);
  }
  return tree;
}

int MaxNodes(const TreeShape& shape, int depth) {
  // The sum over the levels, if each node gets all the children that it can.
  int64_t nodes = 0, parents = 1;
  for (int level = 0; level < depth && nodes < std::numeric_limits<int>::max(); ++level) {
    parents =
        std::visit(Overloaded{[&](const Branching& b) {
                                return level < std::ssize(b.children) ? parents * b.children[level] : 0;
                              },
                              [](const Chains& chains) { return int64_t{chains.count}; },
                              [&](const NodeBudget& budget) {
                                return std::min(int64_t{kMaxBudgetChildren} * parents, budget.nodes - nodes);
                              }},
                   shape);
    nodes += parents;
  }
  return static_cast<int>(std::min<int64_t>(nodes, std::numeric_limits<int>::max()));
}

absl::Status ValidateTreeShape(const TreeShape& shape, int max_nodes, int depth) {
  constexpr char kReason[] = "TREE_OUT_OF_RANGE";
  const auto* branching = std::get_if<Branching>(&shape);
  if (branching != nullptr && branching->children.empty())
    return InvalidFor(kReason, "tree: it has no level");
  if (branching != nullptr && std::ssize(branching->children) > kMaxBranchingLevels) {
    return InvalidFor(kReason, "tree: it has more than ", kMaxBranchingLevels, " levels");
  }
  const int least = std::visit(
      Overloaded{[](const Branching& b) { return *std::min_element(b.children.begin(), b.children.end()); },
                 [](const Chains& chains) { return chains.count; },
                 [](const NodeBudget& budget) { return budget.nodes; }},
      shape);
  if (least < 1) return InvalidFor(kReason, "tree: ", least, " is less than 1");
  const int nodes = MaxNodes(shape, depth);
  if (nodes <= max_nodes) return absl::OkStatus();
  return InvalidFor(kReason, "tree: ", FormatTreeShape(shape), " has ", nodes, " nodes at depth ", depth,
                    "; allowed: at most ", max_nodes);
}

bool DrawsWithoutReplacement(const TreeShape& shape) {
  return std::visit(Overloaded{[](const Branching& b) {
                                 return std::any_of(b.children.begin(), b.children.end(),
                                                    [](int n) { return n > 1; });
                               },
                               [](const Chains&) { return false; },
                               [](const NodeBudget& budget) { return budget.nodes > 1; }},
                    shape);
}

std::vector<int> ChildrenOfLevel(const TreeShape& shape, int level, int depth,
                                 std::span<const double> stands) {
  const size_t parents = stands.size();
  if (level >= depth) return std::vector<int>(parents, 0);
  return std::visit(
      Overloaded{
          [&](const Branching& b) {
            const bool beyond = level >= std::ssize(b.children);
            return std::vector<int>(parents, beyond ? 0 : b.children[level]);
          },
          [&](const Chains& chains) { return std::vector<int>(parents, level == 0 ? chains.count : 1); },
          [&](const NodeBudget& budget) {
            const std::vector<LikelyNode> tree = LikeliestNodes(budget.nodes, depth);
            const auto nodes = std::count_if(tree.begin(), tree.end(),
                                             [&](const LikelyNode& node) { return node.level == level; });
            return ShareOut(static_cast<int>(nodes), stands);
          }},
      shape);
}

}  // namespace outrider
