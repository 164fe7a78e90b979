// How far a search gets with what one call of the target said.
#pragma once

#include <span>
#include <vector>

#include "common/spec/proposal.h"
#include "coordinator/beams/beam_search.h"

namespace outrider {

// What the target said of one live text and of the tokens that the draft expects after it.
struct BeamRows {
  const Proposal* proposal = nullptr;  // only tokens and parents matter
  std::span<const CandidateRow> rows;  // after the text, then after each node
};

// The nodes that spell the beginning of `tokens`, from the root down, as far as there are any.
std::vector<int> PathAlong(const Proposal& proposal, std::span<const TokenId> tokens);

// What came of a call.
struct BeamProgress {
  int steps = 0;
  std::vector<int> origins;  // of each live text now: which one before the call it begins with
};

// Takes every step that the rows cover, where `beams` are of search.live(), in this order. A step is covered
// if each live text is one of the nodes; the first that is not still has its rows, those after the texts
// before it, so that a call is worth one step at least (Leviathan et al., arXiv 2211.17192, appendix A.4).
BeamProgress AdvanceBeams(std::span<const BeamRows> beams, BeamSearch& search);

}  // namespace outrider
