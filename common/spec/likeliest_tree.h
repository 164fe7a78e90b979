// Chooses the nodes of a tree whose tokens are taken, not drawn: EAGLE-2's dynamic tree (Li et al. 2024,
// arXiv 2406.16858). A node's value is the product of the draft's probabilities along its path, an estimate
// of the chance that it is accepted. On each level the nodes of highest value are expanded, each with its
// likeliest tokens, and the likeliest of all nodes are kept.
//
// Each node is a point mass. A token taken as one of the first k was not drawn from the softmax, which must
// not be reported as its q. The kept nodes are a function of the committed tokens and of the draft's logits
// after them and after nodes. No random number of the round enters: the draft draws nothing, and the target
// draws later. Given the committed tokens the tree is thus a constant, and any constant tree of point masses
// is exact (docs/exactness.md).
//
// Pure functions, any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "common/spec/distribution.h"
#include "common/spec/proposal.h"
#include "common/spec/random.h"
#include "common/spec/verify.h"

namespace outrider {

// Where the target takes its likeliest token too, the draft's first choice stands more often than the draft's
// softmax says. The values are then those of the softmax at this temperature (docs/performance.md).
inline constexpr double kLeastValueTemperature = 0.4;

// Sets path_log_probability of one node's children from the softmax of the row that they were taken from, a
// point mass, at the higher of `temperature` and kLeastValueTemperature. `parent` is the node's own value, 0
// for the last committed token. Drops masked children.
void SetValues(const WeightRow& row, double temperature, double parent, std::vector<ProposalNode>& children);

// Keeps the `nodes` nodes of highest value, the first among equals. The result is a tree in the same order,
// since a node's value is at most its parent's. A dropped node and its descendants would be dropped later
// too, whatever is added.
void KeepLikeliest(int nodes, Proposal& tree);

// Returns which of the last `level_nodes` nodes to expand next, as ascending indices: the likeliest ones, if
// their children may be among the `nodes` likeliest. Over `depth` levels fewer than `nodes` are expanded.
std::vector<int> NodesToExpand(const Proposal& tree, int level_nodes, int nodes, int depth);

struct SiblingDraw {
  Rule rule = Rule::kToken;
  int top_n = 0;             // size of q, as for TruncateTopN
  int count = 1;             // siblings to draw
  bool independent = false;  // all from the same q; otherwise without replacement
};

// Returns the siblings for `position` from the draft's own row, in the order in which they were drawn; the
// caller sets `parent`. Fewer than `count` if no more tokens are possible. With first_candidate 0 the first
// one is the node that Propose gives.
//
// Ratio rules: sibling i is drawn with candidate first_candidate + i, which no other node at this position
// may use. Without replacement its q is the first sibling's without the tokens drawn before it, as the target
// must know it. Drawn from the same q, two siblings may have the same token. For a point mass, and under the
// coupled rule, nothing is drawn: the siblings are the first choices, each a point mass or without q, whether
// independent or not. `key` is the key of `noise`.
std::vector<ProposalNode> ProposeSiblings(const SiblingDraw& draw, const WeightRow& row, const RandomKey& key,
                                          uint64_t position, uint64_t first_candidate, Noise& noise);

}  // namespace outrider
