// Which outcomes of a verification are worth drafting for.
#pragma once

#include <span>
#include <vector>

#include "common/spec/proposal.h"
#include "common/spec/types.h"

namespace outrider {

// An outcome that has a name before it comes: so many tokens accepted, then either the draft's r-th other
// choice in place of the rejected one, or, after all of them, what the draft draws next.
struct NamedOutcome {
  size_t accepted = 0;
  int rank = 0;  // from 0; of no meaning after all of them
  double chance = 0;
};

// How many other choices of the draft are looked at in place of a token.
inline constexpr int kRanks = 4;

// What is known of a proposal before it is verified.
struct OutcomeChances {
  std::span<const double> accepted;   // of each node, if those before it are
  std::span<const double> corrected;  // that a rejected token is replaced by the draft's r-th other choice
  double continued = 0;               // that what the draft draws after an accepted proposal comes next
};

// All of them, the likeliest first. The correction after a < K tokens is never the token that was rejected,
// so there is no outcome that repeats it.
std::vector<NamedOutcome> LikelyOutcomes(std::span<const ProposalNode> chain, const OutcomeChances& chances);

}  // namespace outrider
