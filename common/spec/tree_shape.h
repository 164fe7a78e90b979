// The shape of a draft's token tree: how many children each node gets, level by level.
//
// `depth` is K, the most tokens that a path can have; a shape may have fewer levels. Level 0 holds the
// children of the last committed token. Pure functions, any thread.
#pragma once

#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace outrider {

// Each node of the previous level gets children[level] children. There are no levels beyond the list.
struct Branching {
  std::vector<int> children;
  friend bool operator==(const Branching&, const Branching&) = default;
};

// `count` chains, sampled independently.
struct Chains {
  int count = 1;
  friend bool operator==(const Chains&, const Chains&) = default;
};

// `nodes` nodes in all. If tokens are sampled, each level has as many nodes as in LikeliestNodes, given to
// the likeliest parents. If the likeliest tokens are taken, their values choose the nodes (likeliest_tree.h).
struct NodeBudget {
  int nodes = 1;
  friend bool operator==(const NodeBudget&, const NodeBudget&) = default;
};

using TreeShape = std::variant<Branching, Chains, NodeBudget>;

// The most levels of a Branching, and the most children that a NodeBudget gives a node: more children are
// hardly ever accepted.
inline constexpr int kMaxBranchingLevels = 31;
inline constexpr int kMaxBudgetChildren = 8;

// Parses "2x2x1" or "3", "chains:4", or "budget:12". Every number is at least 1. Errors: InvalidArgument,
// naming the field `tree`.
absl::StatusOr<TreeShape> ParseTreeShape(absl::string_view text);
// The inverse of ParseTreeShape.
std::string FormatTreeShape(const TreeShape& shape);

// The most nodes that a tree of this shape can have.
int MaxNodes(const TreeShape& shape, int depth);

// INVALID_ARGUMENT, reason TREE_OUT_OF_RANGE: a number below 1, no level or too many of them, or more nodes
// than `max_nodes`.
absl::Status ValidateTreeShape(const TreeShape& shape, int max_nodes, int depth);

// Whether siblings are drawn without replacement. Such siblings must not be tried in a random order.
bool DrawsWithoutReplacement(const TreeShape& shape);

// Probability that the child of rank `rank` (0 is the first) is accepted if its parent is, given that
// probability for the first child. All values are means over the texts of the shipped pair at temperature 1,
// drawn from q without replacement (docs/performance.md).
inline constexpr double kFirstChildStands = 0.75;
double ChildStands(int rank, double first_stands = kFirstChildStands);

// A tree of `nodes` nodes (fewer if it is full), likeliest first, so that a smaller tree is a prefix of a
// larger one. It has the most accepted nodes on average among the trees of its size, if only the ranks of a
// node and of its ancestors are known: no node is likelier than its parent or than the sibling before it
// (Chen et al., Sequoia, arXiv 2402.12374, who find it by dynamic programming).
struct LikelyNode {
  int parent = -1;
  int rank = 0;
  int level = 0;
};
std::vector<LikelyNode> LikeliestNodes(int nodes, int depth);

// Returns how many children each node of the previous level gets. At level 0 the only parent is the last
// committed token. `stands` has, for each parent, the chance that its path is accepted; only a NodeBudget
// uses it. Any values keep the text exact if they are known before a child of the level is drawn: the result
// then depends only on earlier draws, and the shape does not bias the text (docs/exactness.md).
std::vector<int> ChildrenOfLevel(const TreeShape& shape, int level, int depth,
                                 std::span<const double> stands);

}  // namespace outrider
