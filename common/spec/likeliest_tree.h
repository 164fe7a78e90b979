// Chooses the nodes of a tree whose tokens are the likeliest ones and not sampled: EAGLE-2's dynamic tree (Li
// et al. 2024, arXiv 2406.16858). A node's value is the product of the draft's probabilities along its path,
// an estimate of the chance that it is accepted. On each level the nodes of highest value are expanded, each
// with its likeliest tokens. Of all nodes, those of highest value are kept.
//
// The q of each node is a point mass. A token taken from the top k was not sampled from the softmax, so the
// softmax must not be reported as its q. The kept nodes are a function of the committed tokens and of the
// draft's logits. They do not depend on the random numbers of the round: the draft draws none, and the target
// draws later. Given the committed tokens, the tree is thus a constant, and any constant tree of point masses
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

// The lowest temperature of the softmax that gives the values. If the target is greedy too, the draft's first
// choice is accepted more often than its softmax at temperature 1 says (docs/drafters.md).
inline constexpr double kLeastValueTemperature = 0.4;

// Sets path_log_probability of one node's children. Their probabilities are those of `row`, a point mass,
// under the softmax at the higher of `temperature` and kLeastValueTemperature. `parent` is the node's own
// value, 0 for the last committed token. Drops masked children.
void SetValues(const WeightRow& row, double temperature, double parent, std::vector<ProposalNode>& children);

// Keeps the `nodes` nodes of highest value; ties go to the earlier node. The result is a tree in the same
// order, since a node's value is at most its parent's. A dropped node and its descendants would be dropped
// later too, whatever nodes are added.
void KeepLikeliest(int nodes, Proposal& tree);

// Returns which of the last `level_nodes` nodes to expand next, as ascending indices: the likeliest of those
// whose children may be among the `nodes` likeliest. Over `depth` levels fewer than `nodes` are expanded.
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
// may use. Without replacement, its q is the first sibling's q without the tokens drawn before it: the target
// needs exactly this q. If all are drawn from the same q, two siblings may have the same token. For a point
// mass, and under the coupled rule, nothing is drawn: the siblings are the draft's first choices, each a
// point mass or without q, whether independent or not. `key` is the key of `noise`.
std::vector<ProposalNode> ProposeSiblings(const SiblingDraw& draw, const WeightRow& row, const RandomKey& key,
                                          uint64_t position, uint64_t first_candidate, Noise& noise);

}  // namespace outrider
