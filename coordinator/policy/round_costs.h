// What rounds take, in seconds, as measured lately.
#pragma once

#include "coordinator/generation/round_report.h"
#include "coordinator/servers/averages.h"

namespace outrider {

// Costs of a tree, of a generation that is alone.
struct TreeCosts {
  double round = 0;  // with nothing drafted, and the ways between the services
  double row = 0;    // each row of a verification
  double level = 0;  // a step of the draft
  double node = 0;   // each further node in a step of the draft
};

// Of rounds of one kind: with one drafter, in lockstep or ahead. All is linear:
//
//   a verification takes V + v rows, a draft step D + d sequences, a proposal of K tokens E + e K.
//
// E is there since the first step of a proposal takes longer: its weights are no longer near. V, D and E are
// learnt while one generation runs alone. Under load a step also takes longer because others use the same
// processors, which counts as the cost of its rows or sequences. What sequences share, each pays its part of.
//
// `running` is the number of generations in progress. One thread.
class RoundCosts {
 public:
  void ObserveVerify(const RoundTimes& times, int running);
  // The draft gave a chain, or a tree.
  void ObserveChain(const RoundReport& round);
  void ObserveTree(const RoundReport& round);
  // The draft was asked and gave nothing.
  void ObserveFailure(const RoundTimes& times);
  // As if that many proposals had been missed.
  void AgeDraft(double proposals);

  // A round's verification of `k` drafted tokens.
  double Verify(int k, int running) const;
  // A proposal of k > 0 tokens, and its messages.
  double Propose(int k, int running) const;
  // Asking in vain. And the share of attempts that were not.
  double Failure(int running) const;
  double proposed() const { return proposed_.mean(1); }
  // A generation alone: a draft's first step beyond what the others take, each of its tokens, and another
  // sequence in its steps.
  double first_step() const { return proposal_.fixed(); }
  double token() const { return proposal_.per_unit(); }
  double sequence() const { return step_.per_unit(); }
  TreeCosts tree() const;

 private:
  static constexpr double kDecay = LinearTime::kDecay;
  // A failure is forgotten within one pause between probes.
  static constexpr double kFailureDecay = 0.98;

  // Learnt alone. As long as nothing else is known, rows and sequences cost little, and tokens cost what they
  // do in the mean.
  LinearTime verify_{0.2}, proposal_{1}, step_{0.2};
  RunningMean verify_wire_{kDecay}, draft_wire_{kDecay};  // what messages add
  // Learnt always.
  RunningMean verify_seconds_{kDecay}, verify_rows_{kDecay}, verify_batch_{kDecay};
  RunningMean step_seconds_{kDecay}, draft_batch_{kDecay};
  RunningMean proposed_{kFailureDecay}, failed_seconds_{kFailureDecay};
};

}  // namespace outrider
