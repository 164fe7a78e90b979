// What a request says about trees.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "coordinator/rounds/request.h"
#include "outrider/v1/inference.pb.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// What beside the request decides whether there can be a tree.
struct TreeLimits {
  const v1::ServerInfo& target;
  const std::string& default_tree;  // of the coordinator, as SpeculationOptions.tree
  bool is_greedy = false;
  bool repeatable = false;  // which tree is drafted does not change what a seed gives
};

// What is wrong with a value of SpeculationOptions.tree; empty: nothing.
std::string ProblemOfTree(const std::string& tree);

// Fills in what is drafted. `request` has drafter, K and parameters already; a shape makes the schedule
// lockstep, and says how deep K is where the request does not. INVALID_ARGUMENT, naming speculation.tree or
// speculation.sibling_order, for a shape that is none, is too large, or cannot be used with the rest of the
// request. What comes from the default, and "auto", gives chains instead. K = 0 ignores a tree.
absl::Status ParseTree(const v1::SpeculationOptions& speculation, const TreeLimits& limits, Request& request);

}  // namespace outrider
