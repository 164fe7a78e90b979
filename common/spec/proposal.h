// A drafter's proposal (tokens that may follow a sequence, each with the distribution it was sampled from),
// and the rule that ends a proposal early. Pure functions, any thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "common/spec/distribution.h"
#include "common/spec/types.h"
#include "common/spec/weights.h"

namespace outrider {

// A drafted token.
struct ProposalNode {
  TokenId token = 0;
  // Index of the node that this one follows; -1 for the last committed token. Nodes with the same parent
  // compete for one position.
  int parent = -1;
  Distribution q;  // prepared (see Prepare); kAbsent under the coupled rule
  // The draft's confidence before it drew the token; 0 if it gave none.
  float confidence = 0;
  // The tokens that the draft would have proposed instead of this one, best first; empty if it gave none.
  std::vector<TokenId> alternatives = {};
  // Log of the node's value if likeliest_tree.h chose the node, else 0.
  double path_log_probability = 0;
};

// Parents come before their children, siblings in the order in which they were drawn. Empty: nothing is
// proposed, and the round is plain decoding.
using Proposal = std::vector<ProposalNode>;

// Whether the proposal is a chain: node i follows node i - 1, so no position has two candidates.
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

// Returns the depth of each node: the number of nodes before it on its path.
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

// Ends a draft before it has its full length, once the next token does not pay.
//
// The criterion is the draft's confidence in each token, known before the token is drawn: how much its row
// prefers the likeliest token to the second likeliest. AdaEDL (Agrawal et al., arXiv 2410.18351) stops by a
// bound on the acceptance of one token, a function of the entropy of its row. With the shipped pair at
// temperature 0 the entropy gains a little over half as much, and it costs a pass of exponentials. Here
// acceptance is measured by confidence, and the draft ends by the chance that all its tokens so far are
// accepted, as in SpecDec++ (Huang et al., arXiv 2405.19715).
//
// Any values keep the text exact: they only decide how much is drafted, and no drawn token is taken back.
struct DraftStop {
  // Probability that a token is accepted if those before it are, by the bin of its confidence
  // (ConfidenceBin). If empty, the draft never ends early.
  std::vector<float> acceptance = {};
  // The draft ends with the token that takes the chance that all tokens are accepted below this.
  float least = 0;
};

// p / (p + p'), where p and p' are the probabilities of a row's two likeliest tokens; in [1/2, 1]. At
// temperature 0 they are those of the softmax of the row's logits.
inline float Confidence(const WeightRow& row) {
  const bool greedy = row.point_mass >= 0;
  const std::span<const float> values = greedy ? row.logits : row.weights;
  const size_t likeliest = static_cast<size_t>(greedy ? row.point_mass : FindMax(values).index);
  const float next =
      std::max(FindMax(values.first(likeliest)).value, FindMax(values.subspan(likeliest + 1)).value);
  if (greedy) return 1 / (1 + std::exp(next - values[likeliest]));
  return values[likeliest] / (values[likeliest] + std::max(next, 0.0f));
}

// Returns the bin, in [0, bins), of a confidence. All bins are equally wide. Values outside [1/2, 1] go to
// the first or the last bin, and NaN to the first.
inline int ConfidenceBin(float confidence, int bins) {
  if (!(confidence > 0.5f)) return 0;
  return std::min(static_cast<int>((2 * std::min(confidence, 1.0f) - 1) * static_cast<float>(bins)),
                  bins - 1);
}

// Whether the draft ends after these tokens, a chain whose confidences are known.
inline bool EndsDraft(const DraftStop& stop, std::span<const ProposalNode> drafted) {
  if (stop.acceptance.empty()) return false;
  double all_stand = 1;
  for (const ProposalNode& node : drafted) {
    const int bin = ConfidenceBin(node.confidence, static_cast<int>(stop.acceptance.size()));
    all_stand *= stop.acceptance[static_cast<size_t>(bin)];
  }
  return all_stand < stop.least;
}

}  // namespace outrider
