// The shape of a tree of drafted tokens.
#pragma once

#include <variant>
#include <vector>

namespace outrider {

// So many children for each node of the level before, a level each; the first level has one parent.
struct Branching {
  std::vector<int> children;
};

// Chains that part after the last committed token.
struct Chains {
  int count = 1;
};

// So many nodes in all, where the draft finds them most likely to be accepted.
struct NodeBudget {
  int nodes = 1;
};

using TreeShape = std::variant<Branching, Chains, NodeBudget>;

}  // namespace outrider
