// Which nodes a tree has whose tokens are taken and not drawn: EAGLE-2's dynamic tree (Li et al. 2024, arXiv
// 2406.16858). A node's value is the product of the draft's probabilities along its path, which stand for the
// chance that it is accepted. A level's nodes of highest value are expanded, each with its likeliest tokens,
// and of all nodes the likeliest are kept.
//
// Each node is a point mass. A token that was taken as one of the first k was not drawn from the softmax, and
// must not be reported with it. Which nodes are kept is a function of the committed tokens and of the draft's
// logits after them and after nodes; no random number of the round enters, neither the draft's, which draws
// nothing, nor the target's, which come later. Given the committed tokens the tree is thus a constant, and
// any constant tree of point masses is exact (docs/exactness.md).
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
// softmax says: its values are then those of the softmax at this temperature (docs/performance.md).
inline constexpr double kLeastValueTemperature = 0.4;

// Sets path_log_probability of the children of one node by the softmax of the row that they were taken from,
// a point mass, at the temperature of the text, or the least. `parent`: the node's own value; 0 for the last
// committed token. Drops those that are masked.
void SetValues(const WeightRow& row, double temperature, double parent, std::vector<ProposalNode>& children);

// Keeps that many nodes, those of highest value, and of equals the first. What is left is a tree in the same
// order: a node's value is no more than its parent's. A node that is dropped would be dropped later too,
// whatever is added, and so would all that follows it.
void KeepLikeliest(int nodes, Proposal& tree);

// Of the last `level_nodes` nodes, the indices, ascending, of those to be expanded next: the likeliest ones,
// if their children may be among the `nodes` likeliest. In `depth` levels fewer than `nodes` are expanded.
std::vector<int> NodesToExpand(const Proposal& tree, int level_nodes, int nodes, int depth);

struct SiblingDraw {
  Rule rule = Rule::kToken;
  int top_n = 0;             // of q, as TruncateTopN takes it
  int count = 1;             // siblings to draw
  bool independent = false;  // all from the same q; otherwise without replacement
};

// The siblings for `position` from the draft's own row, in the order in which they were drawn; `parent` is
// left to the caller. Fewer than `count` if no more tokens are possible. The first one, with first_candidate
// 0, is the node that Propose gives.
//
// Ratio rules: sibling i is drawn with candidate first_candidate + i, which no other node at this position
// may use. Without replacement its q is that of the first without the tokens before it, as the target has to
// know it. From the same q two siblings may have the same token. Where there is a point mass, and under the
// coupled rule, nothing is drawn: the siblings are the first choices, each a point mass or without q, whether
// independent or not. `key` is that of `noise`.
std::vector<ProposalNode> ProposeSiblings(const SiblingDraw& draw, const WeightRow& row, const RandomKey& key,
                                          uint64_t position, uint64_t first_candidate, Noise& noise);

}  // namespace outrider
