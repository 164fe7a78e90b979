// Decides, once a round, how much to draft, and whether to draft while the target verifies.
#pragma once

#include <bit>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/generation/generation.h"
#include "coordinator/policy/measured_rounds.h"

namespace outrider {

// Chooses the K that yields the most tokens for the time that a round costs all generations,
//
//   (1 - alpha^(K+1)) / (1 - alpha)  over  Verify(K) + Propose(K),
//
// which is Theorem 3.8 of Leviathan et al. (arXiv 2211.17192) with measured times (VerifyCosts, DraftCosts)
// and the alpha of the generation (Acceptance). If the draft sometimes gives nothing, the rate is that of
// both kinds of rounds together, so K falls to 0 while proposals fail.
//
// Generations that run together share forward passes, and drafts and verifications share processors, so that
// what one costs depends on the others. So trials show whether they are faster while they draft or while none
// does (LoadChoice). With a draft service they take the same K, by the alpha of all, so that they stay in
// step. Otherwise the best K and rate if all took the same K give a price: the time by which one more token
// each lengthens a round. A generation drafts a token while its chance of being accepted, by the generation's
// own alpha, times the time that a token is worth exceeds the price.
//
// A draft model that drafts for one generation alone stops by itself (DraftStop): it continues while its next
// token yields more than the best K does in the same time.
//
// In a round that runs ahead, a proposal costs its full time only if nothing was drafted for the outcome.
// Otherwise it costs only the time by which it outlasts the verification.
//
// What is learned of the drafters that `auto` asks is kept apart: a text may defeat one and suit another.
//
// K depends on times and on earlier committed tokens, never on the round's own random numbers, so it changes
// no distribution. It does change which random numbers a token gets, so requests with a seed under the token
// and block rules keep a fixed K (Request::adaptive).
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

  // Chooses the length for the next round: at most what the request allows and the answer has left, as a
  // round emits up to K + 1 tokens. 0 for the prompt's round, so that the first token waits for no draft.
  DraftLength Choose(const Generation& generation) {
    return generation.emitted() == 0 ? DraftLength()
                                     : ChooseWithin(GroupOf(generation), generation, generation.DraftRoom());
  }

  // Chooses the length for the round after the one about to be verified, if the target itself proposes. The
  // proposal comes with the verdict, and is cut to the room that the verdict leaves.
  DraftLength ChooseNext(const Generation& generation) {
    return ChooseWithin(GroupIfAutoAsks(v1::DRAFTER_KIND_EAGLE, generation), generation,
                        generation.DraftRoom() - 1);
  }

  // The outcomes of verifying `proposal` that are worth drafting for, the likeliest first.
  std::vector<Outcome> Outcomes(const Generation& generation, const Proposal& proposal);

  // Whether the draft should compute the prompt of a generation that begins.
  bool ExpectsToDraft(const Generation& generation);

  // Call after each round but the prompt's. `round.draft_status` says whether the draft was asked in vain.
  void OnRound(const RoundReport& round);

 private:
  // What was learned from the generations of one Group, separately for rounds in lockstep and ahead.
  struct Learned {
    VerifyCosts* verify = nullptr;
    DraftCosts draft = {};
    Acceptance acceptance = {};
    bool ahead = false;
    int drafted_rounds = 0, chosen_rounds = 0;
    bool had_plain_round = false;
    int plain_rounds = 0;       // since the last round with a draft
    int probed_after = 0;       // plain_rounds when a probe was last chosen
    int rounds_unforeseen = 0;  // in which running ahead did not seem to pay
    // For several generations: the best K if all took the same, and the rounds until it is chosen again.
    int common = 0, rounds_until_choice = 0;
  };
  // Generations that are learned from together.
  struct Group {
    v1::DrafterKind wanted;  // the request's drafter
    v1::DrafterKind asked;   // the same, or the one that `auto` asks
    bool greedy;

    auto operator<=>(const Group&) const = default;
  };
  static Group GroupOf(const Generation& generation) {
    return {generation.request().drafter, generation.round_drafter(), generation.greedy()};
  }
  // The group of a round in which `auto` asks this drafter.
  static Group GroupIfAutoAsks(v1::DrafterKind drafter, const Generation& generation) {
    const v1::DrafterKind wanted = generation.request().drafter;
    return {wanted, wanted == v1::DRAFTER_KIND_AUTO ? drafter : wanted, generation.greedy()};
  }
  Learned& LearnedOf(const Group& group, bool ahead);

  // Chooses the length for a round with room for `most` drafted tokens.
  DraftLength ChooseWithin(const Group& group, const Generation& generation, int most);
  DraftLength ChooseLength(Learned& learned, const Group& group, const Generation& generation, int most);
  std::optional<DraftLength> ChooseTree(const Learned& learned, const Group& group,
                                        const Generation& generation, int most);
  // Whether the round is to draft although drafting does not seem to pay. One probe is chosen at a time.
  bool Probes(Learned& learned) const;
  // The length that seems best by what was learned, without trials.
  DraftLength LengthFor(const Learned& learned, const Group& group, const Generation& generation,
                        int most) const;
  // The K of one of several generations, for its own alpha.
  int OneOfSeveral(const Learned& learned, double alpha, int most) const;
  // The rule that ends a draft whose next token yields less than a round with K = `best` does in that time.
  DraftStop StopFor(const Learned& learned, double excess, double alpha, int best) const;

  // Whether both schedules, or trees besides chains, are tried: only for a generation that runs alone, if the
  // request leaves it open. Several generations fill each other's pauses, and a tree's rows slow the others.
  bool MeasuresSchedules(const Generation& generation) const {
    return generation.request().schedule == v1::SCHEDULE_AUTO && running_ <= 1;
  }
  bool ChoosesTree(const Generation& generation) const {
    return generation.request().chooses_tree && running_ <= 1;
  }

  // Whether a generation that runs alone drafts ahead. Both ways are judged by what a round is expected to
  // yield, so fewer rounds suffice for a trial.
  MeasuredChoice& ScheduleOf(const Group& group) {
    constexpr int kRoundsOfATrial = 8;
    return schedules_.try_emplace(group, kRoundsOfATrial).first->second;
  }
  // The choice of generations that run together, of which there are about as many as now.
  LoadChoice& LoadOf(bool greedy) {
    return loads_[{greedy, std::bit_width(static_cast<uint32_t>(running_))}];
  }

  // Tokens per second, and seconds per round, with a proposal of k tokens if the draft gives one.
  double Rate(const Learned& learned, double alpha, int k) const;
  double Seconds(const Learned& learned, double alpha, int k) const;
  // The K in [0, most] with the best rate.
  int Best(const Learned& learned, double alpha, int most) const;

  const int max_branches_;
  std::map<std::pair<Group, bool>, Learned> learned_;           // true: runs ahead
  std::map<std::pair<bool, bool>, VerifyCosts> verifications_;  // by whether greedy, and whether ahead
  std::map<Group, MeasuredChoice> schedules_;
  std::map<Group, TreeChoice> trees_;
  std::map<std::pair<bool, int>, LoadChoice> loads_;  // by whether greedy, and the power of two of running_
  int running_ = 0;
};

}  // namespace outrider
