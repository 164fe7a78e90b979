// Decides, once a round, how much to draft, and whether to draft while the target verifies.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/generation/generation.h"
#include "coordinator/policy/measured_rounds.h"

namespace outrider {

// Chooses the K that yields the most tokens for the time that a round takes from everybody,
//
//   (1 - alpha^(K+1)) / (1 - alpha)  over  Verify(K) + Propose(K),
//
// which is Theorem 3.8 of Leviathan et al. (arXiv 2211.17192) with measured times (RoundCosts) and the alpha
// of the generation (Acceptance). If the draft sometimes gives nothing, the rate is that of both kinds of
// rounds together, so K falls to 0 while proposals fail. Several generations take the same K, since those in
// step share forward passes, and use the alpha of all.
//
// A draft model that drafts for one generation alone stops by itself (DraftStop): it continues while its next
// token yields more than the best K does in the same time.
//
// A round that runs ahead pays for a proposal only if nothing was drafted for its outcome. Otherwise it waits
// only for what the verification did not cover.
//
// K depends on times and on what was committed before, never on the round's own random numbers: it changes no
// distribution. It does change which random numbers a token gets, so requests with a seed under the token and
// block rules keep a fixed K (Request::adaptive).
//
// One thread.
class DraftChoice {
 public:
  // Drafts for at most `max_branches` outcomes of a round.
  explicit DraftChoice(int max_branches = 8) : max_branches_(max_branches) {}

  // A generation takes part from Begin until End.
  void Begin() { ++running_; }
  void End() { --running_; }
  int running() const { return running_; }

  // Chooses for the next round: at most what the request allows and the answer has left, given that a round
  // emits up to K + 1 tokens. Nothing for the prompt's round, so that the first token waits for no draft.
  DraftLength Choose(const Generation& generation) {
    return generation.emitted() == 0 ? DraftLength() : ChooseWithin(generation, generation.DraftRoom());
  }

  // Chooses for the round after the one about to be verified, where the target itself proposes. Its proposal
  // comes with the verdict, whichever that will be, and is cut to the room that the verdict leaves.
  DraftLength ChooseNext(const Generation& generation) {
    return ChooseWithin(generation, generation.DraftRoom() - 1);
  }

  // The outcomes of verifying `proposal` that are worth drafting for, the likeliest first.
  std::vector<Outcome> Outcomes(const Generation& generation, const Proposal& proposal);

  // Whether the draft should compute the prompt of a generation that begins.
  bool ExpectsToDraft(const Generation& generation);

  // Call after each round but the prompt's. `round.draft_status` says whether the draft was asked in vain.
  void OnRound(const RoundReport& round);

 private:
  // Learned of generations with the same drafter, greedy or sampled, that run ahead or do not.
  struct Kind {
    RoundCosts costs;
    Acceptance acceptance;
    bool ahead = false;
    int drafted_rounds = 0, chosen_rounds = 0;
    bool had_plain_round = false;
    int plain_rounds = 0;       // since anything was drafted
    int rounds_unforeseen = 0;  // in which running ahead did not seem to pay
    // With several generations: their common K, and the rounds until it is chosen anew.
    int common = 0, rounds_until_choice = 0;
  };
  // A drafter, and whether what it drafts for is greedy.
  using Group = std::pair<v1::DrafterKind, bool>;
  static Group GroupOf(const Generation& generation) {
    return {generation.request().drafter, generation.greedy()};
  }
  Kind& KindOf(const Generation& generation, bool ahead);

  // Chooses for a round with room for `most` drafted tokens.
  DraftLength ChooseWithin(const Generation& generation, int most);
  DraftLength ChooseLength(Kind& kind, const Generation& generation, int most);
  std::optional<DraftLength> ChooseTree(const Kind& kind, const Generation& generation, int most);
  // The length that seems best by what is known, without trials.
  DraftLength LengthFor(const Kind& kind, const Generation& generation, int most) const;
  // Ends a draft whose next token yields less than a round with the best K, `best`, in the same time.
  DraftStop StopFor(const Kind& kind, double excess, double alpha, int best) const;

  // Whether both schedules, or trees beside chains, are measured: for a generation that runs alone, where the
  // request leaves it open. Several fill each other's pauses, and a tree's rows take time from them.
  bool MeasuresSchedules(const Generation& generation) const {
    return generation.request().schedule == v1::SCHEDULE_AUTO && running_ <= 1;
  }
  bool ChoosesTree(const Generation& generation) const {
    return generation.request().chooses_tree && running_ <= 1;
  }

  // Tokens per second, and seconds per round, with a proposal of k tokens if the draft gives one.
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
