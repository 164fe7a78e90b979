// Recently measured costs of rounds, in seconds, and acceptance of drafted tokens. Also choices between kinds
// of rounds by their measured speed.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/spec/averages.h"
#include "common/spec/proposal.h"
#include "common/spec/tree_shape.h"
#include "common/spec/verdict.h"
#include "coordinator/generation/generation.h"
#include "coordinator/policy/verify_costs.h"

namespace outrider {

// How many of the draft's alternatives are considered in place of a rejected token.
inline constexpr int kRanks = 4;

// An outcome of a verification that can be named in advance. `accepted` tokens stand. They are followed by
// the draft's alternative of rank `rank` or, after a whole proposal, by the token that the draft draws next.
struct NamedOutcome {
  size_t accepted = 0;
  int rank = 0;  // from 0; unused after a whole proposal
  double chance = 0;
};

// The chances of a proposal's outcomes, before it is verified.
struct OutcomeChances {
  std::span<const double> accepted;   // of each node, given that those before it are accepted
  std::span<const double> corrected;  // that the alternative of each rank replaces a rejected token
  double continued = 0;               // that the draft's next draw follows an accepted proposal
};

// Returns all outcomes, the likeliest first. A rejected token is never its own correction.
std::vector<NamedOutcome> LikelyOutcomes(std::span<const ProposalNode> chain, const OutcomeChances& chances);

// The acceptance of drafted tokens, learned from all generations of one kind. One thread.
class Acceptance {
 public:
  // Observes a round with a chain, in lockstep or ahead.
  void Observe(std::span<const ProposalNode> chain, size_t accepted);
  // Observes a round that ran ahead. `branches`: most outcomes that are drafted for; 0 if none was. `hit`:
  // this one was.
  void ObserveAhead(std::span<const ProposalNode> chain, const Verdict& verdict, int branches, bool hit);
  // Ages as if that many rounds with a draft had been missed.
  void Age(double rounds) { all_.Age(rounds); }

  // The chance that the next token is accepted: the accepted share of the judged tokens. A draft that reports
  // its confidence ends where it is unsure; then it is the accepted share of first tokens.
  double alpha() const { return all_.mean(kUnknownAcceptance); }
  // The same while few tokens were judged.
  double AlphaAtFirst() const { return all_.MeanWithPrior(kUnknownAcceptance, kPriorOfAlpha); }
  // The same for a token in that bin of confidence.
  double AlphaOfBin(int bin) const;
  // The ratio of one generation's rejections, `own`, to those expected of tokens of the same confidence.
  double ExcessOfRejections(const AcceptanceByConfidence& own) const;
  bool knows_confidence() const { return knows_confidence_; }

  // The chance that the outcome was drafted for: after a whole proposal, and after a correction in a proposal
  // of k tokens, if at most `branches` outcomes are drafted for.
  double WholeHit(double alpha) const { return whole_hits_.MeanWithPrior(alpha, kPriorOfAnOutcome); }
  double CorrectedHit(double alpha, int k, int branches) const;
  // The mean number of tokens of a round with that chain. It varies less than the tokens themselves.
  double ExpectedTokens(std::span<const ProposalNode> chain) const;
  std::vector<NamedOutcome> Outcomes(std::span<const ProposalNode> chain) const;

 private:
  // The meaning of confidence changes more slowly than times do, and a bin sees fewer tokens.
  static constexpr double kConfidenceDecay = 0.998;
  static constexpr double kUnknownAcceptance = 0.7;
  static constexpr double kPriorOfAlpha = 8;  // judged tokens
  // First guesses: how often the draft's second, third, ... choice replaces a rejected token, how often any
  // choice that was drafted for does, and how many observations these guesses count as.
  static constexpr std::array<double, kRanks> kCorrectedAtFirst = {0.35, 0.15, 0.08, 0.05};
  static constexpr double kUnknownCorrected = 0.35;
  static constexpr double kPriorOfAnOutcome = 4;

  double Corrected(int rank) const {
    return corrected_[rank].MeanWithPrior(kCorrectedAtFirst[rank], kPriorOfAnOutcome);
  }
  // The share of a proposal's corrections that are among its `branches` likeliest outcomes, if each of its k
  // tokens is accepted with chance alpha.
  double Foreseeable(double alpha, int k, int branches) const;

  RunningMean all_;
  AcceptanceByConfidence by_confidence_{kConfidenceDecay};
  bool knows_confidence_ = false;
  RunningMean whole_hits_;
  // Of corrections: the share that was drafted for, and the share that was foreseeable. Their ratio says what
  // to expect at another k.
  RunningMean corrected_hits_, foreseeable_;
  std::array<RunningMean, kRanks> corrected_;
};

// Costs of a tree in seconds, for a generation that runs alone.
struct TreeCosts {
  const StepTime* verify = nullptr;  // of the tree's rows
  double round = 0;                  // fixed part of a round with a draft, messages included
  double level = 0;                  // a step of the draft
  double node = 0;                   // each further node in a step of the draft
};

// What proposals of one drafter cost, in lockstep or ahead. A draft step takes D + d sequences, a proposal of
// K tokens E + e K. E exists because the first step of a proposal takes longer: the weights have left the
// caches. D and E are learned while one generation runs alone. Under load a step also takes longer because
// others use the same processors; this counts as the cost of its sequences. Sequences in a step share D.
//
// `running` is the number of generations in progress. One thread.
class DraftCosts {
 public:
  // Observes a round whose draft gave a chain, or a tree. The time of a chain that catches up says little.
  void ObserveChain(const RoundReport& round);
  void ObserveTree(const RoundReport& round);
  // Observes a round whose draft was asked and gave nothing.
  void ObserveFailure(const RoundTimes& times) {
    proposed_.Observe(0);
    failed_seconds_.Observe(Seconds(times.draft));
  }
  // Ages as if that many proposals had been missed.
  void Age(double proposals);

  // Seconds for a proposal of k > 0 tokens, messages included.
  double Propose(int k, int running) const;
  // Seconds lost to a failed proposal, and the share of proposals that did not fail.
  double Failure(int running) const { return failed_seconds_.mean(0) / std::max(running, 1); }
  double proposed() const { return proposed_.mean(1); }
  // Seconds, alone: the extra time of a proposal's first step, a token, and one more sequence in a step.
  double first_step() const { return proposal_.fixed(); }
  double token() const { return proposal_.per_unit(); }
  double sequence() const { return step_.per_unit(); }
  TreeCosts OfTrees(const VerifyCosts& verify) const {
    return {&verify.steps(), verify.wire() + draft_wire_.mean(0) + proposal_.fixed(), proposal_.per_unit(),
            step_.per_unit()};
  }

 private:
  static constexpr double kFailureDecay = 0.98;  // a failure is forgotten within one pause between probes

  // Learned while one generation runs alone. At first a sequence costs little, a token the mean.
  LinearTime proposal_{1}, step_{0.2};
  RunningMean draft_wire_;  // the time that messages add
  // Always learned.
  RunningMean step_seconds_, draft_batch_;
  RunningMean proposed_{kFailureDecay}, failed_seconds_{kFailureDecay};
};

// Chooses between the usual way to make rounds and another way. Drafting while the target verifies, for
// example, is faster if draft and target have their own processors. The faster way is used for many rounds.
// Then the other is tried for a few, more rarely each time it loses. One thread.
class MeasuredChoice {
 public:
  // The mean time of a token in so few rounds varies by a few percent by chance.
  static constexpr int kRoundsOfATrial = 16;

  explicit MeasuredChoice(int rounds_of_a_trial = kRoundsOfATrial) : trial_(rounds_of_a_trial) {}

  // Whether the next round takes the other way. After a change, Observe leaves out the first `unsettled`
  // rounds. They still show what was before: nothing was drafted ahead for them, for example.
  bool Next(int unsettled = 1);
  // Observes a round that gave `tokens` tokens in `seconds`. `other`: it took the other way.
  void Observe(bool other, double seconds, double tokens) {
    if (unsettled_ > 0) {
      --unsettled_;
    } else if (tokens > 0) {
      (other ? other_ : usual_).Observe(seconds / tokens, tokens);
    }
  }

 private:
  void EndTrial();

  // One trial errs by a quarter on a busy machine, so the one before counts half.
  static constexpr double kDecay = 0.5;

  const int trial_;
  RunningMean usual_, other_;  // seconds per token
  RunningMean ratio_{kDecay};  // the logarithms of other / usual in trials
  bool other_is_better_ = false;
  bool trying_ = false;  // the slower way is on trial
  int unsettled_ = 0;    // rounds that Observe leaves out
  int rounds_left_ = 0;  // of the trial, or until the next
  int pause_ = 0;        // rounds from the end of a trial to the next
};

// Chooses whether generations that run together draft or all decode plainly, by the tokens per second of all
// of them. One thread.
class LoadChoice {
 public:
  // Whether none is to draft.
  bool plain() const { return plain_; }

  // Observes a round of one of `running` generations. All of them make a round between two choices.
  void Observe(double seconds, int tokens, int running) {
    choice_.Observe(plain_, seconds / running, tokens);
    seconds_left_ -= seconds / running;
    if (--rounds_left_ > 0 || seconds_left_ > 0) return;
    // Rounds of all were begun before a change.
    plain_ = choice_.Next(running + 1);
    rounds_left_ = running;
    seconds_left_ = kSecondsOfAChoice;
  }

 private:
  // A trial takes at least 50 ms, as the speed of a shared machine varies within a few.
  static constexpr int kChoicesOfATrial = 4;
  static constexpr double kSecondsOfAChoice = 12.5e-3;

  MeasuredChoice choice_{kChoicesOfATrial};
  bool plain_ = false;
  int rounds_left_ = 0;  // until the next choice
  double seconds_left_ = 0;
};

// Chooses between chains and trees for generations that run alone.
//
// A tree yields one token plus its accepted nodes. How often a child of rank r at depth d is accepted, if its
// parent is, was observed lately. Of all node budgets and depths, the one with the best predicted rate is
// tried against the chain if that rate is about as good as the chain's. Whichever was measured to be faster
// is used (MeasuredChoice). One thread.
class TreeChoice {
 public:
  // Returns the tree to draft next, or nullopt for a chain, which is expected to yield `chain_rate` tokens
  // per second. A tree may have at most `depth` levels and `nodes` nodes.
  std::optional<DraftLength> Next(double chain_rate, const TreeCosts& costs, int depth, int nodes);

  // Observes a round for which Next was asked.
  void Observe(const RoundReport& round);

 private:
  static constexpr int kDepths = 4;  // deeper nodes count as the deepest of these
  static constexpr int kRanks = kMaxBudgetChildren;
  static constexpr double kShareDecay = 0.998;

  // The best tree, its tokens per second, and those of the best chain.
  struct Candidate {
    int nodes = 0, depth = 0;
    double rate = 0, chain_rate = 0;
  };
  Candidate Best(const TreeCosts& costs, int depth, int nodes);
  void Compare(const std::vector<LikelyNode>& tree, int depth, const TreeCosts& costs, Candidate& best) const;
  // The chance that the child of that rank is accepted, if its parent is.
  double AcceptanceOf(int depth, int rank) const;

  struct Share : RunningMean {
    Share() : RunningMean(kShareDecay) {}
  };
  std::array<std::array<Share, kRanks>, kDepths> accepted_;
  std::map<std::pair<int, int>, std::vector<LikelyNode>> trees_;  // by nodes and depth
  MeasuredChoice choice_;
};

}  // namespace outrider
