// Several candidates for one position: what a draft proposes to follow one node of a tree.
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
