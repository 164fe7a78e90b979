#include "coordinator/policy/draft_choice.h"

#include <algorithm>
#include <cmath>

#include "common/spec/analysis.h"

namespace outrider {
namespace {

// Acceptance counts as known after kRoundsToLearn rounds with a draft. Until then drafts have at most
// kWhileLearning tokens.
constexpr int kRoundsToLearn = 12;
constexpr int kWhileLearning = 4;
// One round in this many drafts a token more or less than seems best. The costs of a round and of a token can
// be told apart only at different sizes, and next to the best K little is lost.
constexpr int kTryNeighbourEvery = 16;
// One round in this many is plain, so that the gain of speculation stays known, also in the metrics.
constexpr int kTryPlainEvery = 256;
constexpr int kRoundsInStep = 16;  // several generations take the same K for this many rounds of each
// While nothing is drafted, one round in this many drafts, to see whether drafting would pay again.
constexpr int kProbeEvery = 200;
constexpr int kProbeTokens = 2;

}  // namespace

DraftChoice::Learned& DraftChoice::LearnedOf(const Group& group, bool ahead) {
  VerifyCosts& verify = verifications_[{group.greedy, false}];
  Learned& lockstep = learned_.try_emplace({group, false}, Learned{.verify = &verify}).first->second;
  if (!ahead) return lockstep;
  // What is learned of rounds ahead begins with what is known from lockstep.
  const auto [entry, is_new] = learned_.try_emplace({group, true}, lockstep);
  if (is_new) {
    entry->second.ahead = true;
    entry->second.verify = &verifications_.try_emplace({group.greedy, true}, verify).first->second;
  }
  return entry->second;
}

double DraftChoice::Seconds(const Learned& learned, double alpha, int k) const {
  const double verify = learned.verify->Share(k, running_);
  if (k == 0) return verify;
  const double proposal = learned.draft.Propose(k, running_);
  if (!learned.ahead || running_ > 1) return verify + proposal;
  const double whole = std::pow(alpha, k);
  const double whole_hit = whole * learned.acceptance.WholeHit(alpha);
  const double corrected_hit = (1 - whole) * learned.acceptance.CorrectedHit(alpha, k, max_branches_);
  const auto late = [&](double more) { return std::max(proposal + more - verify, 0.0); };
  // If the whole proposal is accepted, the draft must first be fed its last token.
  return verify + whole_hit * late(learned.draft.token()) + corrected_hit * late(0) +
         (1 - whole_hit - corrected_hit) * proposal;
}

double DraftChoice::Rate(const Learned& learned, double alpha, int k) const {
  double tokens = ExpectedTokens(std::min(alpha, 0.999), k);
  double seconds = Seconds(learned, alpha, k);
  if (k > 0) {
    const double proposed = learned.draft.proposed();
    tokens = proposed * tokens + (1 - proposed);
    seconds = proposed * seconds +
              (1 - proposed) * (learned.verify->Share(0, running_) + learned.draft.Failure(running_));
  }
  return tokens / seconds;
}

int DraftChoice::Best(const Learned& learned, double alpha, int most) const {
  int best = 0;
  double best_rate = 0;
  for (int k = 0; k <= most; ++k) {
    const double rate = Rate(learned, alpha, k);
    if (rate <= best_rate) continue;
    best = k;
    best_rate = rate;
  }
  return best;
}

int DraftChoice::OneOfSeveral(const Learned& learned, double alpha, int most) const {
  const int common = learned.common;
  const double worth = 1 / Rate(learned, learned.acceptance.alpha(), common);
  // A row costs more where arithmetic decides, so the tokens up to `common` have a price of their own.
  const auto price_of_token = [&](int k) {
    return Seconds(learned, alpha, k) - Seconds(learned, alpha, k - 1);
  };
  const double within = common > 0 ? price_of_token(common) : 0, beyond = price_of_token(common + 1);
  int k = 0;
  for (double stands = alpha; k < most && stands * worth > (k < common ? within : beyond); stands *= alpha)
    ++k;
  return k;
}

DraftStop DraftChoice::StopFor(const Learned& learned, double excess, double alpha, int best) const {
  DraftStop stop;
  for (int bin = 0; bin < AcceptanceByConfidence::kBins; ++bin) {
    const double accepted = std::max(1 - excess * (1 - learned.acceptance.AlphaOfBin(bin)), 0.0);
    stop.acceptance.push_back(static_cast<float>(accepted));
  }
  const double seconds = Seconds(learned, alpha, best + 1) - Seconds(learned, alpha, best);
  stop.least = static_cast<float>(Rate(learned, alpha, best) * seconds / alpha);
  return stop;
}

DraftLength DraftChoice::ChooseWithin(const Group& group, const Generation& generation, int most) {
  most = std::min(generation.request().draft_tokens, most);
  if (most <= 0) return {};
  if (const std::optional<TreeShape>& tree = generation.request().tree) return {.most = most, .tree = tree};
  const bool ahead = MeasuresSchedules(generation) ? ScheduleOf(group).Next()
                                                   : generation.request().schedule == v1::SCHEDULE_RUN_AHEAD;
  Learned& learned = LearnedOf(group, ahead);
  DraftLength length = ChooseLength(learned, group, generation, most);
  length.ahead = ahead;
  if (length.most > 0 && ChoosesTree(generation) && learned.drafted_rounds >= kRoundsToLearn) {
    std::optional<DraftLength> tree = ChooseTree(learned, group, generation, most);
    if (tree) return *std::move(tree);
  }
  return length;
}

std::optional<DraftLength> DraftChoice::ChooseTree(const Learned& learned, const Group& group,
                                                   const Generation& generation, int most) {
  const Request& request = generation.request();
  const double alpha = learned.acceptance.alpha();
  const int k = request.adaptive ? Best(learned, alpha, most) : most;
  // Trees are always drafted in lockstep, even if chains are drafted ahead.
  const Learned& lockstep = LearnedOf(group, false);
  const TreeCosts costs = lockstep.draft.OfTrees(*lockstep.verify);
  return trees_[group].Next(Rate(learned, alpha, k), costs, most, request.max_tree_nodes);
}

DraftLength DraftChoice::ChooseLength(Learned& learned, const Group& group, const Generation& generation,
                                      int most) {
  const Request& request = generation.request();
  if (!request.adaptive) return {most};
  if (learned.drafted_rounds >= kRoundsToLearn && running_ > 1) {
    if (LoadOf(group.greedy).plain()) return {};
    if (learned.rounds_until_choice-- <= 0) {
      learned.common = Best(learned, learned.acceptance.alpha(), request.draft_tokens);
      learned.rounds_until_choice = kRoundsInStep * running_;
    }
    if (learned.common == 0 && Probes(learned)) return {std::min(most, kProbeTokens)};
  }
  DraftLength length = LengthFor(learned, group, generation, most);
  if (learned.drafted_rounds < kRoundsToLearn || running_ > 1) return length;
  if (length.most == 0) {
    if (Probes(learned)) length.most = std::min(most, kProbeTokens);
    return length;
  }
  if (++learned.chosen_rounds % kTryPlainEvery == 0) return {};
  const bool ends_itself = length.stop && !length.stop->acceptance.empty();
  if (!ends_itself && learned.chosen_rounds % kTryNeighbourEvery == 0) {
    const int step = learned.chosen_rounds / kTryNeighbourEvery % 2 == 0 ? 1 : -1;
    length.most = std::clamp(length.most + step, 1, most);
  }
  return length;
}

bool DraftChoice::Probes(Learned& learned) const {
  if (learned.plain_rounds - learned.probed_after < kProbeEvery * std::max(running_, 1)) return false;
  learned.probed_after = learned.plain_rounds;
  return true;
}

DraftLength DraftChoice::LengthFor(const Learned& learned, const Group& group, const Generation& generation,
                                   int most) const {
  const Request& request = generation.request();
  if (!request.adaptive) return {most};
  const bool may_stop = running_ <= 1 && group.asked == v1::DRAFTER_KIND_MODEL;
  // With an empty DraftStop, the draft drafts all k tokens and reports its confidence in each.
  const auto all_of = [&](int k) {
    return DraftLength{.most = k, .stop = may_stop ? std::optional(DraftStop()) : std::nullopt};
  };
  if (learned.drafted_rounds < kRoundsToLearn) {
    // A row costs as much as a step on some processors. The first draft and a plain round show this cost.
    const int longest = std::min(most, kWhileLearning);
    if (running_ > 1 || learned.drafted_rounds == 0) return all_of(longest);
    if (!learned.had_plain_round) return {};
    return all_of(std::max(Best(learned, learned.acceptance.AlphaAtFirst(), longest), 1));
  }
  const double excess = learned.acceptance.ExcessOfRejections(generation.recent_acceptance(group.asked));
  const double alpha = std::max(1 - excess * (1 - learned.acceptance.alpha()), 0.0);
  if (running_ > 1) {
    // Those that a draft service drafts for stay in step, and share its forward passes.
    const bool in_step = group.asked == v1::DRAFTER_KIND_MODEL;
    return {in_step ? std::min(learned.common, most) : OneOfSeveral(learned, alpha, most)};
  }
  const int best = Best(learned, alpha, most);
  if (best > 0 && may_stop && learned.acceptance.knows_confidence()) {
    return {most, StopFor(learned, excess, alpha, best)};
  }
  return all_of(best);
}

std::vector<Outcome> DraftChoice::Outcomes(const Generation& generation, const Proposal& proposal) {
  const Group group = GroupOf(generation);
  Learned& learned = LearnedOf(group, true);
  const auto ends = [&](TokenId token) {
    return std::ranges::count(generation.request().end_ids, token) > 0;
  };
  // Nothing follows a token that ends the text.
  const auto end = std::ranges::find_if(proposal, ends, &ProposalNode::token);
  const auto reachable = static_cast<size_t>(end - proposal.begin());

  std::vector<Outcome> outcomes;
  double foreseen = 0;
  for (const NamedOutcome& named : learned.acceptance.Outcomes(proposal)) {
    if (static_cast<int>(outcomes.size()) == max_branches_) break;
    const bool whole = named.accepted == proposal.size();
    const int room = generation.DraftRoom() - static_cast<int>(named.accepted) - 1;
    const int most = std::min(generation.request().draft_tokens, room);
    if (named.accepted > reachable || most <= 0) continue;
    Outcome outcome{.accepted = named.accepted, .length = LengthFor(learned, group, generation, most)};
    if (!whole) outcome.token = proposal[named.accepted].alternatives[named.rank];
    if (outcome.length.most == 0 || (outcome.token && ends(*outcome.token))) continue;
    // Compares what an early proposal saves with what one more sequence in a step costs the other branches.
    if (!outcomes.empty() && named.chance * learned.draft.token() < foreseen * learned.draft.sequence())
      continue;
    foreseen += named.chance;
    outcome.length.ahead = true;
    outcomes.push_back(std::move(outcome));
  }
  // If the outcome was not foreseen, its proposal may have to wait for a step of the branches.
  const double step = learned.draft.token();
  const double proposal_seconds = learned.draft.first_step() + static_cast<double>(proposal.size()) * step;
  const bool pays = foreseen * proposal_seconds >= (1 - foreseen) * step;
  if (!pays && ++learned.rounds_unforeseen % kTryNeighbourEvery != 0) return {};
  return outcomes;
}

bool DraftChoice::ExpectsToDraft(const Generation& generation) {
  const Request& request = generation.request();
  if (!request.adaptive) return request.draft_tokens > 0;
  const Learned& learned = LearnedOf(GroupIfAutoAsks(v1::DRAFTER_KIND_MODEL, generation), false);
  if (learned.drafted_rounds < kRoundsToLearn) return true;
  if (running_ > 1) return learned.common > 0 && !LoadOf(generation.greedy()).plain();
  return Best(learned, learned.acceptance.alpha(), request.draft_tokens) > 0;
}

void DraftChoice::OnRound(const RoundReport& round) {
  const Generation& generation = *round.generation;
  const Proposal& proposal = *round.proposal;
  const Group group = GroupOf(generation);
  const bool failed = round.draft_status == DraftStatus::kFailed;
  if (MeasuresSchedules(generation) && IsChain(proposal)) {
    // Both ways are judged by the same acceptance.
    const bool has_run_ahead = learned_.contains({group, true});
    const double expected = LearnedOf(group, has_run_ahead).acceptance.ExpectedTokens(proposal);
    ScheduleOf(group).Observe(round.ahead.runs, outrider::Seconds(round.times.round), expected);
  }
  if (!failed && ChoosesTree(generation)) trees_[group].Observe(round);
  Learned& learned = LearnedOf(group, round.ahead.runs);
  learned.verify->Observe(round.times, running_);
  if (running_ > 1 && generation.request().adaptive) {
    LoadOf(group.greedy).Observe(outrider::Seconds(round.times.round), round.emitted, running_);
  }
  if (!failed && proposal.empty()) {
    ++learned.plain_rounds;
    learned.had_plain_round = true;
    return;
  }
  // What is known of the draft ages by the plain rounds since the last round that asked for a draft.
  ++learned.drafted_rounds;
  learned.draft.Age(learned.plain_rounds);
  learned.acceptance.Age(learned.plain_rounds);
  learned.plain_rounds = learned.probed_after = 0;
  if (failed) return learned.draft.ObserveFailure(round.times);
  // How often one of several siblings is accepted says nothing about the acceptance of a chain.
  if (!IsChain(proposal)) return learned.draft.ObserveTree(round);
  learned.draft.ObserveChain(round);
  learned.acceptance.Observe(proposal, round.verdict->path.size());
  if (round.ahead.runs) {
    const int branches = round.ahead.branches > 0 ? max_branches_ : 0;
    learned.acceptance.ObserveAhead(proposal, *round.verdict, branches, round.ahead.hit);
  }
}

}  // namespace outrider
