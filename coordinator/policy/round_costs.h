// What rounds take, in seconds, as measured lately.
#pragma once

#include "coordinator/generation/generation.h"
#include "coordinator/servers/averages.h"

namespace outrider {

// Costs of a tree, for a generation that runs alone.
struct TreeCosts {
  double round = 0;  // with nothing drafted, messages between the services included
  double row = 0;    // each row of a verification
  double level = 0;  // a step of the draft
  double node = 0;   // each further node in a step of the draft
};

// Costs of rounds of one kind: with one drafter, in lockstep or ahead. All are linear:
//
//   a verification takes V + v rows, a draft step D + d sequences, a proposal of K tokens E + e K.
//
// E exists because the first step of a proposal takes longer: its weights are no longer near. V, D and E are
// learned while one generation runs alone. Under load a step also takes longer because others use the same
// processors; this counts as the cost of its rows or sequences. Sequences divide the cost of what they share.
//
// `running` is the number of generations in progress. One thread.
class RoundCosts {
 public:
  void ObserveVerify(const RoundTimes& times, int running);
  // The draft gave a chain, or a tree.
  void ObserveChain(const RoundReport& round);
  void ObserveTree(const RoundReport& round);
  // Observes a round whose draft was asked and gave nothing.
  void ObserveFailure(const RoundTimes& times);
  // Ages as if that many proposals had been missed.
  void AgeDraft(double proposals);

  // Seconds to verify `k` drafted tokens.
  double Verify(int k, int running) const;
  // Seconds for a proposal of k > 0 tokens, messages included.
  double Propose(int k, int running) const;
  // Seconds for asking in vain, and the share of attempts that were not in vain.
  double Failure(int running) const;
  double proposed() const { return proposed_.mean(1); }
  // For a generation alone: what a draft's first step takes beyond the others, what each token takes, and
  // what another sequence adds to its steps.
  double first_step() const { return proposal_.fixed(); }
  double token() const { return proposal_.per_unit(); }
  double sequence() const { return step_.per_unit(); }
  TreeCosts tree() const;

 private:
  // A failure is forgotten within one pause between probes.
  static constexpr double kFailureDecay = 0.98;

  // Learned while one generation runs alone. Until more is known, rows and sequences are assumed to cost
  // little, and tokens their mean.
  LinearTime verify_{0.2}, proposal_{1}, step_{0.2};
  RunningMean verify_wire_, draft_wire_;  // what messages add
  // Always learned.
  RunningMean verify_seconds_, verify_rows_, verify_batch_;
  RunningMean step_seconds_, draft_batch_;
  RunningMean proposed_{kFailureDecay}, failed_seconds_{kFailureDecay};
};

}  // namespace outrider
