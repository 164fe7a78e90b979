// How often drafted tokens stand.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "common/spec/proposal.h"
#include "common/spec/types.h"
#include "common/spec/verdict.h"
#include "coordinator/generation/acceptance_by_confidence.h"
#include "coordinator/servers/averages.h"

namespace outrider {

// How many of the draft's other choices are looked at in place of a rejected token.
inline constexpr int kRanks = 4;

// An outcome of a verification that can be named before it comes: `accepted` tokens stand, then comes the
// draft's other choice of that rank, or, after a whole proposal, what the draft draws next.
struct NamedOutcome {
  size_t accepted = 0;
  int rank = 0;  // from 0; without meaning after a whole proposal
  double chance = 0;
};

// What is known of a proposal before it is verified.
struct OutcomeChances {
  std::span<const double> accepted;   // of each node, given that those before it are
  std::span<const double> corrected;  // that the draft's other choice of a rank replaces a rejected token
  double continued = 0;               // that what the draft draws after an accepted proposal comes next
};

// All of them, the likeliest first. A rejected token is never its own correction, so no outcome repeats it.
std::vector<NamedOutcome> LikelyOutcomes(std::span<const ProposalNode> chain, const OutcomeChances& chances);

// What all generations of a kind have seen of their drafter. One thread.
class Acceptance {
 public:
  // A round with a chain, in lockstep or ahead.
  void Observe(std::span<const ProposalNode> chain, size_t accepted);
  // A round with a chain that ran ahead: whether its outcome had been drafted for, if any was.
  void ObserveAhead(std::span<const ProposalNode> chain, const Verdict& verdict, bool drafted_for, bool hit);
  // As if that many rounds with a draft had been missed.
  void Age(double rounds) { all_.Age(rounds); }

  // The chance that the next token stands: the share of judged tokens that did. Where the draft says how sure
  // it is, drafts end early and their later tokens are those it is sure of: then the share of first tokens.
  double alpha() const;
  // The same for a token of that bin of confidence.
  double Of(int bin) const;
  // How many times as many tokens of one generation, `own`, were rejected as those of all with their
  // confidences.
  double ExcessOfRejections(const AcceptanceByConfidence& own) const;
  // The draft says how sure it was.
  bool knows_confidence() const { return knows_confidence_; }

  // The chance that the outcome was drafted for, after a whole proposal and after a correction.
  double WholeHit(double alpha) const;
  double CorrectedHit() const;
  std::vector<NamedOutcome> Outcomes(std::span<const ProposalNode> chain) const;

 private:
  // Confidence changes its meaning more slowly than times change, and a bin sees fewer tokens.
  static constexpr double kConfidenceDecay = 0.998;
  static constexpr double kDecay = 0.995;

  RunningMean all_{kDecay};
  AcceptanceByConfidence by_confidence_{kConfidenceDecay};
  bool knows_confidence_ = false;
  RunningMean whole_hits_{kDecay}, corrected_hits_{kDecay};
  std::array<RunningMean, kRanks> corrected_{RunningMean{kDecay}, RunningMean{kDecay}, RunningMean{kDecay},
                                             RunningMean{kDecay}};
};

}  // namespace outrider
