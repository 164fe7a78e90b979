// Decides, once a round, how much to draft, and whether to draft while the target verifies.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/rounds/acceptance_by_confidence.h"
#include "coordinator/rounds/draft_length.h"
#include "coordinator/rounds/generation.h"
#include "coordinator/rounds/likely_outcomes.h"
#include "coordinator/rounds/linear_time.h"
#include "coordinator/rounds/measured_choice.h"
#include "coordinator/rounds/outcome.h"
#include "coordinator/rounds/round_report.h"
#include "coordinator/rounds/tree_choice.h"

namespace outrider {

// Chooses the K that yields most tokens for the time that a round takes from everybody:
//
//   (1 - alpha^(K+1)) / (1 - alpha)  over  V/B + v (K+1) + w/N + [K > 0] (P(K) + w'/N)
//
// where V + v rows is the time of a verification, P(K) that of a proposal, B the number of sequences that
// share a verification, w and w' what messages add to a generation that runs alone, and N the generations in
// progress; all measured. With several, P(K) = K (D/B' + d), where D + d sequences is the time of a draft
// step and B' sequences share it. With one, P(K) = E + e K, since a proposal's first step takes longer: its
// weights are no longer near. Then this is Theorem 3.8 of Leviathan et al. (arXiv 2211.17192); with many,
// what is paid once a step is shared and rows decide, so that under load K falls, to 0 where plain decoding
// is faster. V and D are measured while a generation runs alone: under load steps also
// take longer because others use the same processors, and that is counted with the rows. alpha is the
// share of judged tokens that were accepted lately: for a generation alone its own, begun with that of all of
// its kind. Several use that of their kind and take the same K: in step they share forward passes, out of
// step they would not.
//
// A draft model that drafts for a generation alone decides itself when to stop, by a rule that it is given
// (DraftStop). With a(c) the acceptance of tokens of confidence c, its next token yields a(c_1) ... a(c_i)
// alpha tokens and takes d(time)/dK, in which the best K yields so and so many: the draft goes on while its
// token yields more. What a generation's own tokens tell is how much more often they are rejected than those
// of its kind with the same confidences; a(c) and alpha are corrected by that. Where drafts end early, the
// mean over all judged tokens would be too good, since later ones are drafted only where the draft is sure.
// There alpha is the share of first tokens, which every draft has.
//
// Where the target proposes itself, P(K) is what it says that its proposals took, and K is chosen a round ahead:
// before the verdict that the proposal will follow.
//
// A draft that is asked and gives nothing costs time for one token. With p the share of attempts that gave a
// proposal and F the time of one that did not, what is compared is p (tokens) + (1-p) over p (time) +
// (1-p) (the time of K = 0, and F/N), so that K falls to 0 while proposals fail.
//
// A round that runs ahead pays for a proposal only if the round before came to nothing that was drafted for.
// With h the share of rounds whose outcome was drafted for, kept apart for accepted and for corrected
// proposals, what is compared is (1-h) P(K) + h max(0, A(K) - the time of a verification), where A(K) is P(K)
// after a correction, and e more after a proposal that was accepted as a whole: its last token has to be fed
// first. Times that were measured while the other model worked too are kept apart from those of lockstep. An
// outcome is drafted for if the time that it would save, times its chance, is more than the others lose by
// one more sequence in their steps; and all of them, but for a round now and then, only if they save more
// than a step of theirs costs that is in the way of a proposal nobody foresaw. Several generations fill each
// other's pauses already: they run ahead only if the request says so.
//
// Where the request leaves it to the policy, a generation alone drafts trees while they are measured to be
// faster than chains (tree_choice.h).
//
// K looks at times and at what was committed before, never at the round's own random numbers: it changes no
// distribution. But it changes which random numbers a token gets, so that requests with a seed under the
// token and block rules keep a fixed K (Request::adaptive).
//
// One thread.
class DraftLengthPolicy {
 public:
  // Drafts for at most so many outcomes of a round.
  explicit DraftLengthPolicy(int max_branches = 8) : max_branches_(max_branches) {}

  // A generation takes part from Begin until End.
  void Begin() { ++running_; }
  void End() { --running_; }
  // How many do.
  int running() const { return running_; }

  // For the next round: at most what the request allows and what is left of the answer, which a round may
  // complete with K + 1 tokens. The prompt's own round is plain, since the first token should not wait for a
  // draft. A K that the request fixes is drafted in full.
  DraftLength Choose(const Generation& generation);

  // The same for the round after the one that is about to be verified, where the target proposes itself,
  // together with its verdict, whichever that will be.
  DraftLength ChooseNext(const Generation& generation);

  // What `proposal`, which is being verified, may come to that is worth drafting for, the likeliest first.
  std::vector<Outcome> Outcomes(const Generation& generation, const Proposal& proposal);

  // Whether it would be worth while to have the draft compute the prompt of a generation that begins.
  bool ExpectsToDraft(const Generation& generation);

  // After each round but the prompt's that was not to draft, or did.
  void OnRound(const RoundReport& round);
  // Instead, if the draft was asked and gave nothing.
  void OnDraftFailed(const RoundReport& round);

 private:
  // What is learnt of generations with the same drafter, greedy ones apart from sampled ones, and rounds that
  // run ahead apart from others.
  struct Kind {
    static constexpr double kDecay = LinearTime::kDecay;
    // How far a draft can be trusted changes less than times do, and a bin sees fewer tokens.
    static constexpr double kConfidenceDecay = 0.998;
    // A failure is forgotten sooner than a time: within one pause between probes.
    static constexpr double kFailureDecay = 0.98;

    // Alone: of a verification by rows, of a proposal by tokens, and of a draft step by sequences. As long as
    // nothing else is known, rows and sequences cost little, and tokens cost what they do in the mean.
    LinearTime verify{0.2}, proposal{1}, step{0.2};
    // Always.
    RunningMean verify_seconds{kDecay}, verify_rows{kDecay}, step_seconds{kDecay};
    RunningMean verify_wire{kDecay}, draft_wire{kDecay};
    RunningMean verify_batch{kDecay}, draft_batch{kDecay};  // sequences
    RunningMean accepted{kDecay};  // of the tokens that were judged; of first ones where drafts end early
    AcceptanceByConfidence by_confidence{kConfidenceDecay};
    // Running ahead: whether the outcome had been drafted for, after a whole proposal and after less.
    RunningMean whole_hits{kDecay}, part_hits{kDecay};
    // How often a rejected token was replaced by the draft's r-th other choice.
    std::array<RunningMean, kRanks> corrected{RunningMean{kDecay}, RunningMean{kDecay}, RunningMean{kDecay},
                                              RunningMean{kDecay}};
    bool knows_confidence = false;              // the draft says how sure it was
    RunningMean proposed{kFailureDecay};        // of the attempts to get a proposal
    RunningMean failed_seconds{kFailureDecay};  // of those that gave none
    int drafted_rounds = 0, chosen_rounds = 0;
    int plain_rounds = 0;       // since anything was drafted
    int rounds_unforeseen = 0;  // in which running ahead did not seem to pay
    // With several generations: the K of all, and when it is chosen anew.
    int common = 0, rounds_until_choice = 0;
    bool ahead = false;
  };
  // A drafter, and whether what it drafts for is greedy.
  using Group = std::pair<v1::DrafterKind, bool>;
  static Group GroupOf(const Generation& generation);
  Kind& KindOf(const Generation& generation, bool ahead);
  // Whether the generation's next round runs ahead.
  bool ChooseSchedule(const Generation& generation);
  // Only a generation alone has both.
  bool MeasuresSchedules(const Generation& generation) const;
  // Of a round with room for `most` drafted tokens.
  DraftLength ChooseWithin(const Generation& generation, int most);
  // For a round that runs ahead or not, with room for `most` tokens.
  DraftLength ChooseLength(Kind& kind, const Generation& generation, int most);
  // Whether a tree may be drafted in place of a chain, and the tree, if one is.
  bool ChoosesTree(const Generation& generation) const;
  std::optional<DraftLength> ChooseTree(const Kind& kind, const Generation& generation, int most);
  // What seems best, by what is known.
  DraftLength LengthFor(const Kind& kind, const Generation& generation, int most) const;
  void ObserveVerify(Kind& kind, const RoundTimes& times);
  void ObserveTree(Kind& kind, const RoundReport& round) const;
  // An attempt to get a proposal ends the rounds without one.
  static void CountAttempt(Kind& kind);
  // Acceptance of tokens of that bin, among all of a kind.
  static double Acceptance(const Kind& kind, int bin);
  // What is learnt from a round that ran ahead.
  static void ObserveOutcome(Kind& kind, const RoundReport& round);
  void ObserveSchedule(const RoundReport& round);
  // How many times as many of a generation's tokens are rejected as of all of its kind with their
  // confidences.
  static double ExcessOfRejections(const Kind& kind, const Generation& generation);
  // Ends a draft whose next token yields less than a round with the best K, `best`, in that time.
  DraftStop StopFor(const Kind& kind, double excess, double alpha, int best) const;
  // Tokens for the time of a round, with a proposal of k tokens if the draft gives one.
  double Rate(const Kind& kind, double alpha, int k) const;
  double Seconds(const Kind& kind, double alpha, int k) const;
  // The K in [0, most] with the best rate.
  int Best(const Kind& kind, double alpha, int most) const;

  const int max_branches_;
  std::map<std::pair<Group, bool>, Kind> kinds_;  // running ahead or not
  std::map<Group, MeasuredChoice> schedules_;
  std::map<Group, TreeChoice> trees_;
  int running_ = 0;
};

}  // namespace outrider
