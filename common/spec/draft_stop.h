// Ends a draft before it has all the tokens that it may have, once the next token does not pay.
//
// The criterion is the draft's confidence in each token, known before the token is drawn: how much its row
// prefers the likeliest token to the next. Agrawal et al. (AdaEDL, arXiv 2410.18351) stop by a bound of the
// acceptance of one token, a function of its entropy. With the shipped pair at temperature 0 the entropy
// gains a little over half as much, and it costs a pass of exponentials. Here acceptance is measured by
// confidence, and the draft ends by the chance that all tokens so far stand, as in SpecDec++ (Huang et al.,
// arXiv 2405.19715).
//
// Pure functions, any thread.
#pragma once

#include <span>
#include <vector>

#include "common/spec/distribution.h"
#include "common/spec/proposal.h"

namespace outrider {

// Any values are exact: they decide only how much is drafted, and a drawn token is never taken back.
struct DraftStop {
  // Probability that a token is accepted if those before it are, by the bin of its confidence
  // (ConfidenceBin). If empty, the draft never ends early.
  std::vector<float> acceptance = {};
  // The draft ends after the token with which the chance that all its tokens are accepted falls below this.
  float least = 0;
};

// p / (p + p') of the two likeliest tokens of a row, in [1/2, 1]; at temperature 0, from the softmax of its
// logits.
float Confidence(const WeightRow& row);

// The bin, in [0, bins), of a confidence. Bins are equally wide; values outside [1/2, 1] go to the first or
// the last, NaN to the first.
int ConfidenceBin(float confidence, int bins);

// Whether the draft ends after these tokens, a chain whose confidences are known.
bool EndsDraft(const DraftStop& stop, std::span<const ProposalNode> drafted);

}  // namespace outrider
