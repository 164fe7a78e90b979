// A drafter's proposal: tokens that may follow a sequence, each with the distribution it was sampled from.
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "common/spec/distribution.h"
#include "common/spec/types.h"

namespace outrider {

// A drafted token.
struct ProposalNode {
  TokenId token = 0;
  // Index of the node that this one follows; -1 for the last committed token. Nodes with the same parent
  // compete for one position.
  int parent = -1;
  Distribution q;  // prepared (see Prepare); kAbsent under the coupled rule
  // The draft's confidence before it drew the token (draft_stop.h); 0 if it gave none.
  float confidence = 0;
  // What the draft would have proposed in place of this token, best first; empty if it gave none.
  std::vector<TokenId> alternatives = {};
  // Log of the node's value if likeliest_tree.h chose the node, else 0.
  double path_log_probability = 0;
};

// Parents come before their children, siblings in the order in which they were drawn. Empty: nothing is
// proposed, and the round is plain decoding.
using Proposal = std::vector<ProposalNode>;

// Whether no position has two candidates: node i follows node i - 1.
inline bool IsChain(std::span<const ProposalNode> proposal) {
  for (size_t i = 0; i < proposal.size(); ++i) {
    if (proposal[i].parent != static_cast<int>(i) - 1) return false;
  }
  return true;
}

// Adds a token that follows the last node.
inline void AppendToChain(TokenId token, Distribution q, Proposal& proposal) {
  proposal.push_back({token, static_cast<int>(proposal.size()) - 1, std::move(q)});
}

// For each node, how many nodes precede it on its path: its position among the drafted tokens.
inline std::vector<int> Depths(std::span<const ProposalNode> proposal) {
  std::vector<int> depths;
  depths.reserve(proposal.size());
  for (const ProposalNode& node : proposal) depths.push_back(node.parent < 0 ? 0 : depths[node.parent] + 1);
  return depths;
}

// The number of nodes on the longest path.
inline int Depth(std::span<const ProposalNode> proposal) {
  const std::vector<int> depths = Depths(proposal);
  return depths.empty() ? 0 : *std::max_element(depths.begin(), depths.end()) + 1;
}

}  // namespace outrider
