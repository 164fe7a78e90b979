#include "common/spec/tree_shape.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <queue>
#include <utility>

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

// How much less than a child its next sibling is worth. A sibling is tried only after those before it were
// rejected, so if each is accepted with probability a, child j stands with probability a (1 - a)^j. A draft
// that is worth its time has an a of about 0.65.
constexpr double kLaterSibling = 0.35;

absl::Status ParseError(absl::string_view text) {
  return FieldError("tree", "\"2x2x1\", \"chains:3\" or \"budget:12\", each number at least 1",
                    absl::StrCat("\"", text, "\" is no shape"));
}

bool ParseCount(absl::string_view text, int& count) {
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == absl::string_view::npos;
  return digits && absl::SimpleAtoi(text, &count) && count >= 1;
}

int ToInt(int64_t nodes) {
  return static_cast<int>(std::min<int64_t>(nodes, std::numeric_limits<int>::max()));
}

// How many nodes of a budget a level has: an even share of what the levels before left. Rounded up, since the
// first levels are reached most often.
int LevelOfBudget(const NodeBudget& budget, int level, int depth) {
  int left = budget.nodes, parents = 1;
  for (int l = 0;; ++l) {
    const int share = (left - 1) / (depth - l) + 1;
    const int size = ToInt(std::min<int64_t>({left, share, int64_t{kMaxBudgetChildren} * parents}));
    if (l == level) return size;
    left -= size;
    parents = size;
  }
}

// Hands out children one by one, each to the parent whose next one is expected to gain most.
std::vector<int> ShareOut(int nodes, std::span<const double> path_probability) {
  std::vector<int> children(path_probability.size(), 0);
  using Candidate = std::pair<double, int>;  // gain, and minus the parent's index: of equals the first wins
  std::priority_queue<Candidate> candidates;
  for (size_t parent = 0; parent < path_probability.size(); ++parent) {
    candidates.emplace(path_probability[parent], -static_cast<int>(parent));
  }
  for (; nodes > 0 && !candidates.empty(); --nodes) {
    const auto [gain, minus_parent] = candidates.top();
    candidates.pop();
    if (++children[-minus_parent] < kMaxBudgetChildren)
      candidates.emplace(gain * kLaterSibling, minus_parent);
  }
  return children;
}

absl::Status CheckNumbers(const TreeShape& shape) {
  const auto out_of_range = [](absl::string_view problem) {
    return MakeError(absl::StatusCode::kInvalidArgument, "TREE_OUT_OF_RANGE",
                     absl::StrCat("tree: ", problem));
  };
  const auto* branching = std::get_if<Branching>(&shape);
  if (branching != nullptr && branching->children.empty()) return out_of_range("it has no level");
  if (branching != nullptr && std::ssize(branching->children) > kMaxBranchingLevels) {
    return out_of_range(absl::StrCat("it has more than ", kMaxBranchingLevels, " levels"));
  }
  const int least = std::visit(
      Overloaded{[](const Branching& b) { return *std::min_element(b.children.begin(), b.children.end()); },
                 [](const Chains& chains) { return chains.count; },
                 [](const NodeBudget& budget) { return budget.nodes; }},
      shape);
  return least >= 1 ? absl::OkStatus() : out_of_range(absl::StrCat(least, " is less than 1"));
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

int MaxNodes(const TreeShape& shape, int depth) {
  // As many as the levels have, each with all the children that it can get.
  int64_t nodes = 0, parents = 1;
  for (int level = 0; level < depth && nodes < std::numeric_limits<int>::max(); ++level) {
    parents = std::visit(
        Overloaded{[&](const Branching& b) {
                     return level < std::ssize(b.children) ? parents * b.children[level] : 0;
                   },
                   [](const Chains& chains) { return int64_t{chains.count}; },
                   [&](const NodeBudget& budget) { return int64_t{LevelOfBudget(budget, level, depth)}; }},
        shape);
    nodes += parents;
  }
  return ToInt(nodes);
}

absl::Status ValidateTreeShape(const TreeShape& shape, int max_nodes, int depth) {
  if (absl::Status status = CheckNumbers(shape); !status.ok()) return status;
  const int nodes = MaxNodes(shape, depth);
  if (nodes <= max_nodes) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, "TREE_OUT_OF_RANGE",
                   absl::StrCat("tree: ", FormatTreeShape(shape), " has ", nodes, " nodes at depth ", depth,
                                "; allowed: at most ", max_nodes));
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
                                 std::span<const double> path_probability) {
  const size_t parents = path_probability.size();
  if (level >= depth) return std::vector<int>(parents, 0);
  return std::visit(Overloaded{[&](const Branching& b) {
                                 const bool beyond = level >= std::ssize(b.children);
                                 return std::vector<int>(parents, beyond ? 0 : b.children[level]);
                               },
                               [&](const Chains& chains) {
                                 return std::vector<int>(parents, level == 0 ? chains.count : 1);
                               },
                               [&](const NodeBudget& budget) {
                                 return ShareOut(LevelOfBudget(budget, level, depth), path_probability);
                               }},
                    shape);
}

}  // namespace outrider
