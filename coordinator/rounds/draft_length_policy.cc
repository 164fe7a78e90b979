#include "coordinator/rounds/draft_length_policy.h"

#include <algorithm>
#include <cmath>

#include "common/spec/analysis.h"

namespace outrider {
namespace {

// Before so many rounds with a draft nothing is known, and this K is taken.
constexpr int kRoundsToLearn = 12;
constexpr int kWhileLearning = 4;
// How many judged tokens of its own outweigh what is known of others.
constexpr double kPriorTokens = 60;
constexpr double kUnknownAcceptance = 0.7;
// How often a rejected token is replaced by the draft's second, third, ... choice, and by any that was
// drafted for.
constexpr std::array<double, kRanks> kCorrectedAtFirst = {0.35, 0.15, 0.08, 0.05};
constexpr double kUnknownCorrected = 0.35;
// The same for tokens of one bin of confidence.
constexpr double kPriorOfABin = 4;
// One round in so many drafts a token more or less than seems best: times can only be told apart at sizes
// that differ, and next to the best K little is lost.
constexpr int kTryNeighbourEvery = 16;
// And one in so many is plain, so that what speculation gains is known, in the metrics too.
constexpr int kTryPlainEvery = 256;
// Several generations take the same K for so many rounds of each.
constexpr int kRoundsInStep = 16;
// While nothing is drafted, one round in so many is, to see whether it would pay again.
constexpr int kProbeEvery = 200;
constexpr int kProbeTokens = 2;

// Of an outcome that was seen or not, and a guess that counts as so many observations.
constexpr double kPriorOfAnOutcome = 4;

double Micros(uint32_t us) { return us * 1e-6; }

double Learnt(const RunningMean& share, double guess) {
  return (share.sum() + kPriorOfAnOutcome * guess) / (share.weight() + kPriorOfAnOutcome);
}

}  // namespace

DraftLengthPolicy::Group DraftLengthPolicy::GroupOf(const Generation& generation) {
  const v1::SamplingParams& sampling = generation.request().params.sampling();
  return {generation.request().drafter, sampling.has_temperature() && sampling.temperature() == 0};
}

DraftLengthPolicy::Kind& DraftLengthPolicy::KindOf(const Generation& generation, bool ahead) {
  const Group group = GroupOf(generation);
  Kind& lockstep = kinds_[{group, false}];
  if (!ahead) return lockstep;
  // It begins with what is known.
  const auto [kind, is_new] = kinds_.try_emplace({group, true}, lockstep);
  if (is_new) kind->second.ahead = true;
  return kind->second;
}

bool DraftLengthPolicy::MeasuresSchedules(const Generation& generation) const {
  return generation.request().schedule == v1::SCHEDULE_AUTO && running_ <= 1;
}

bool DraftLengthPolicy::ChooseSchedule(const Generation& generation) {
  if (MeasuresSchedules(generation)) return schedules_[GroupOf(generation)].Next();
  return generation.request().schedule == v1::SCHEDULE_RUN_AHEAD;
}

double DraftLengthPolicy::Seconds(const Kind& kind, double alpha, int k) const {
  const double streams = std::max(running_, 1);
  // Of the mean of all steps, what is not fixed belongs to the rows.
  const auto per_unit = [&](const LinearTime& alone, const RunningMean& seconds, const RunningMean& size) {
    if (running_ <= 1) return alone.per_unit();
    return std::max(seconds.mean(0) - alone.fixed(), 0.0) / size.mean(1);
  };
  const double row = per_unit(kind.verify, kind.verify_seconds, kind.verify_rows);
  const double verify =
      kind.verify.fixed() / kind.verify_batch.mean(1) + row * (k + 1) + kind.verify_wire.mean(0) / streams;
  if (k == 0) return verify;
  const double wire = kind.draft_wire.mean(0) / streams;
  if (running_ > 1) {
    const double sequence = per_unit(kind.step, kind.step_seconds, kind.draft_batch);
    return verify + wire + k * (kind.step.fixed() / kind.draft_batch.mean(1) + sequence);
  }
  const double proposal = wire + kind.proposal.fixed() + k * kind.proposal.per_unit();
  if (!kind.ahead) return verify + proposal;
  const double whole = std::pow(alpha, k);
  const double whole_hit = whole * Learnt(kind.whole_hits, alpha);
  const double part_hit = (1 - whole) * Learnt(kind.part_hits, kUnknownCorrected);
  const auto late = [&](double more) { return std::max(proposal + more - verify, 0.0); };
  return verify + whole_hit * late(kind.proposal.per_unit()) + part_hit * late(0) +
         (1 - whole_hit - part_hit) * proposal;
}

double DraftLengthPolicy::Rate(const Kind& kind, double alpha, int k) const {
  double tokens = ExpectedTokens(std::min(alpha, 0.999), k);
  double seconds = Seconds(kind, alpha, k);
  if (k > 0) {
    const double proposed = kind.proposed.mean(1);
    const double failed = Seconds(kind, alpha, 0) + kind.failed_seconds.mean(0) / std::max(running_, 1);
    tokens = proposed * tokens + (1 - proposed);
    seconds = proposed * seconds + (1 - proposed) * failed;
  }
  return tokens / seconds;
}

int DraftLengthPolicy::Best(const Kind& kind, double alpha, int most) const {
  int best = 0;
  double best_rate = 0;
  for (int k = 0; k <= most; ++k) {
    const double rate = Rate(kind, alpha, k);
    if (rate > best_rate) {
      best = k;
      best_rate = rate;
    }
  }
  return best;
}

double DraftLengthPolicy::Acceptance(const Kind& kind, int bin) {
  const double all = kind.accepted.mean(kUnknownAcceptance);
  if (bin == AcceptanceByConfidence::kUnknown) return all;
  return (kPriorOfABin * all + kind.by_confidence.accepted(bin)) /
         (kPriorOfABin + kind.by_confidence.judged(bin));
}

double DraftLengthPolicy::ExcessOfRejections(const Kind& kind, const Generation& generation) {
  const AcceptanceByConfidence& own = generation.recent_acceptance();
  const double prior = kPriorTokens * (1 - Acceptance(kind, AcceptanceByConfidence::kUnknown));
  double rejected = prior, expected = prior;
  for (int bin = 0; bin <= AcceptanceByConfidence::kUnknown; ++bin) {
    rejected += own.judged(bin) - own.accepted(bin);
    expected += own.judged(bin) * (1 - Acceptance(kind, bin));
  }
  return expected > 0 ? rejected / expected : 1;
}

DraftStop DraftLengthPolicy::StopFor(const Kind& kind, double excess, double alpha, int best) const {
  DraftStop stop;
  for (int bin = 0; bin < AcceptanceByConfidence::kBins; ++bin) {
    stop.acceptance.push_back(static_cast<float>(std::max(1 - excess * (1 - Acceptance(kind, bin)), 0.0)));
  }
  const double seconds = Seconds(kind, alpha, best + 1) - Seconds(kind, alpha, best);
  stop.least = static_cast<float>(Rate(kind, alpha, best) * seconds / alpha);
  return stop;
}

DraftLength DraftLengthPolicy::Choose(const Generation& generation) {
  return generation.emitted() == 0 ? DraftLength() : ChooseWithin(generation, generation.Room() - 1);
}

DraftLength DraftLengthPolicy::ChooseNext(const Generation& generation) {
  // The verdict takes one token of the room, or more: the proposal is then cut.
  return ChooseWithin(generation, generation.Room() - 2);
}

DraftLength DraftLengthPolicy::ChooseWithin(const Generation& generation, int most) {
  most = std::min(generation.request().draft_tokens, most);
  if (most <= 0) return {};
  if (const std::optional<TreeShape>& tree = generation.request().tree) return {.most = most, .tree = tree};
  const bool ahead = ChooseSchedule(generation);
  Kind& kind = KindOf(generation, ahead);
  DraftLength length = ChooseLength(kind, generation, most);
  length.ahead = ahead;
  if (length.most > 0 && ChoosesTree(generation) && kind.drafted_rounds >= kRoundsToLearn) {
    if (std::optional<DraftLength> tree = ChooseTree(kind, generation, most)) return *std::move(tree);
  }
  return length;
}

// With several generations the rows of a tree take time from others.
bool DraftLengthPolicy::ChoosesTree(const Generation& generation) const {
  return generation.request().chooses_tree && running_ <= 1;
}

std::optional<DraftLength> DraftLengthPolicy::ChooseTree(const Kind& kind, const Generation& generation,
                                                         int most) {
  const Request& request = generation.request();
  const double alpha = kind.accepted.mean(kUnknownAcceptance);
  const int k = request.adaptive ? Best(kind, alpha, most) : most;
  // A tree is drafted in lockstep, whatever the chains are.
  const Kind& lockstep = KindOf(generation, false);
  const TreeChoice::Costs costs{.round = Seconds(lockstep, alpha, 0) - lockstep.verify.per_unit() +
                                         lockstep.draft_wire.mean(0) + lockstep.proposal.fixed(),
                                .row = lockstep.verify.per_unit(),
                                .level = lockstep.proposal.per_unit(),
                                .node = lockstep.step.per_unit()};
  return trees_[GroupOf(generation)].Next(Rate(kind, alpha, k), costs, most, request.max_tree_nodes);
}

DraftLength DraftLengthPolicy::ChooseLength(Kind& kind, const Generation& generation, int most) {
  const Request& request = generation.request();
  if (!request.adaptive) return {most};
  if (kind.drafted_rounds >= kRoundsToLearn && running_ > 1) {
    if (kind.rounds_until_choice-- <= 0) {
      kind.common = Best(kind, kind.accepted.mean(kUnknownAcceptance), request.draft_tokens);
      kind.rounds_until_choice = kRoundsInStep * running_;
    }
    if (kind.common == 0 && kind.plain_rounds >= kProbeEvery * running_)
      return {std::min(most, kProbeTokens)};
  }
  DraftLength length = LengthFor(kind, generation, most);
  if (kind.drafted_rounds < kRoundsToLearn || running_ > 1) return length;
  if (length.most == 0) {
    if (kind.plain_rounds >= kProbeEvery) length.most = std::min(most, kProbeTokens);
    return length;
  }
  if (++kind.chosen_rounds % kTryPlainEvery == 0) return {};
  const bool ends_itself = length.stop && !length.stop->acceptance.empty();
  if (!ends_itself && kind.chosen_rounds % kTryNeighbourEvery == 0) {
    const int step = kind.chosen_rounds / kTryNeighbourEvery % 2 == 0 ? 1 : -1;
    length.most = std::clamp(length.most + step, 1, most);
  }
  return length;
}

DraftLength DraftLengthPolicy::LengthFor(const Kind& kind, const Generation& generation, int most) const {
  const Request& request = generation.request();
  if (!request.adaptive) return {most};
  const bool may_stop = running_ <= 1 && request.drafter == v1::DRAFTER_KIND_MODEL;
  // Without a rule to stop by: the draft drafts them all, and says how sure it was.
  const auto all_of = [&](int k) {
    return DraftLength{.most = k, .stop = may_stop ? std::optional(DraftStop()) : std::nullopt};
  };
  if (kind.drafted_rounds < kRoundsToLearn) return all_of(std::min(most, kWhileLearning));
  if (running_ > 1) return {std::min(kind.common, most)};
  const double excess = ExcessOfRejections(kind, generation);
  const double alpha = std::max(1 - excess * (1 - kind.accepted.mean(kUnknownAcceptance)), 0.0);
  const int best = Best(kind, alpha, most);
  if (best > 0 && may_stop && kind.knows_confidence) return {most, StopFor(kind, excess, alpha, best)};
  return all_of(best);
}

std::vector<Outcome> DraftLengthPolicy::Outcomes(const Generation& generation, const Proposal& proposal) {
  Kind& kind = KindOf(generation, true);
  std::vector<double> accepted, corrected;
  for (const ProposalNode& node : proposal) {
    accepted.push_back(Acceptance(kind, AcceptanceByConfidence::BinOf(node.confidence)));
  }
  for (size_t r = 0; r < kRanks; ++r) corrected.push_back(Learnt(kind.corrected[r], kCorrectedAtFirst[r]));
  const double continued = Learnt(kind.whole_hits, kind.accepted.mean(kUnknownAcceptance));

  const std::vector<TokenId>& end_ids = generation.request().end_ids;
  const auto ends = [&](TokenId token) {
    return std::find(end_ids.begin(), end_ids.end(), token) != end_ids.end();
  };
  // The tokens after one that ends the text come to nothing.
  const auto end = std::find_if(proposal.begin(), proposal.end(),
                                [&](const ProposalNode& node) { return ends(node.token); });
  const auto reachable = static_cast<size_t>(end - proposal.begin());

  std::vector<Outcome> outcomes;
  double foreseen = 0;
  for (const NamedOutcome& named : LikelyOutcomes(proposal, {accepted, corrected, continued})) {
    if (static_cast<int>(outcomes.size()) == max_branches_) break;
    const bool whole = named.accepted == proposal.size();
    const int room = generation.Room() - static_cast<int>(named.accepted) - 2;
    const int most = std::min(generation.request().draft_tokens, room);
    if (named.accepted > reachable || most <= 0) continue;
    Outcome outcome{.accepted = named.accepted, .length = LengthFor(kind, generation, most)};
    if (!whole) outcome.token = proposal[named.accepted].alternatives[static_cast<size_t>(named.rank)];
    if (outcome.length.most == 0 || (outcome.token && ends(*outcome.token))) continue;
    // What it saves against what one more row costs the others.
    if (!outcomes.empty() && named.chance * kind.proposal.per_unit() < foreseen * kind.step.per_unit())
      continue;
    foreseen += named.chance;
    outcome.length.ahead = true;
    outcomes.push_back(std::move(outcome));
  }
  // A proposal that nobody foresaw may have to wait for a step of what was foreseen.
  const double step = kind.proposal.per_unit();
  const double proposal_seconds = kind.proposal.fixed() + static_cast<double>(proposal.size()) * step;
  const bool pays = foreseen * proposal_seconds >= (1 - foreseen) * step;
  if (!pays && ++kind.rounds_unforeseen % kTryNeighbourEvery != 0) return {};
  return outcomes;
}

bool DraftLengthPolicy::ExpectsToDraft(const Generation& generation) {
  const Request& request = generation.request();
  if (!request.adaptive) return request.draft_tokens > 0;
  const Kind& kind = KindOf(generation, false);
  if (kind.drafted_rounds < kRoundsToLearn) return true;
  if (running_ > 1) return kind.common > 0;
  return Best(kind, kind.accepted.mean(kUnknownAcceptance), request.draft_tokens) > 0;
}

void DraftLengthPolicy::ObserveVerify(Kind& kind, const RoundTimes& times) {
  const v1::ItemTiming& verify = times.verify_server;
  if (verify.batch_rows() == 0) return;
  const double computing = Micros(verify.compute_us());
  kind.verify_seconds.Observe(computing);
  kind.verify_rows.Observe(verify.batch_rows());
  kind.verify_batch.Observe(verify.batch_sequences());
  if (running_ == 1) {
    kind.verify.Observe(verify.batch_rows(), computing);
    kind.verify_wire.Observe(outrider::Seconds(times.verify) - computing);
  }
}

void DraftLengthPolicy::CountAttempt(Kind& kind) {
  ++kind.drafted_rounds;
  // What is known of the draft is as old as the last round that asked for one.
  kind.proposal.Age(kind.plain_rounds);
  kind.step.Age(kind.plain_rounds);
  for (RunningMean* mean : {&kind.step_seconds, &kind.draft_wire, &kind.draft_batch, &kind.accepted,
                            &kind.proposed, &kind.failed_seconds}) {
    mean->Age(kind.plain_rounds);
  }
  kind.plain_rounds = 0;
}

void DraftLengthPolicy::ObserveOutcome(Kind& kind, const RoundReport& round) {
  const Proposal& drafted = *round.proposal;
  const size_t accepted = round.verdict->path.size();
  if (round.ahead.branches > 0) {
    (accepted == drafted.size() ? kind.whole_hits : kind.part_hits).Observe(round.ahead.hit ? 1 : 0);
  }
  if (accepted == drafted.size()) return;
  const std::vector<TokenId>& others = drafted[accepted].alternatives;
  for (size_t r = 0; r < std::min<size_t>(others.size(), kRanks); ++r) {
    kind.corrected[r].Observe(others[r] == round.verdict->token ? 1 : 0);
  }
}

void DraftLengthPolicy::ObserveSchedule(const RoundReport& round) {
  if (!MeasuresSchedules(*round.generation) || !IsChain(*round.proposal)) return;
  schedules_[GroupOf(*round.generation)].Observe(round.ahead.runs, outrider::Seconds(round.times.round),
                                                 round.emitted);
}

// Of a tree only the time of a step by its nodes: how often one of several siblings stands is no chain's
// acceptance.
void DraftLengthPolicy::ObserveTree(Kind& kind, const RoundReport& round) const {
  if (running_ != 1) return;
  const double levels = Depth(*round.proposal);
  const double nodes = static_cast<double>(round.proposal->size());
  kind.step.Observe(nodes / levels, Micros(round.times.draft_server.compute_us()) / levels);
}

void DraftLengthPolicy::OnDraftFailed(const RoundReport& round) {
  ObserveSchedule(round);
  Kind& kind = KindOf(*round.generation, round.ahead.runs);
  ObserveVerify(kind, round.times);
  CountAttempt(kind);
  kind.proposed.Observe(0);
  kind.failed_seconds.Observe(outrider::Seconds(round.times.draft));
}

void DraftLengthPolicy::OnRound(const RoundReport& round) {
  ObserveSchedule(round);
  const Proposal& drafted = *round.proposal;
  const size_t accepted = round.verdict->path.size();
  Kind& kind = KindOf(*round.generation, round.ahead.runs);
  ObserveVerify(kind, round.times);
  if (ChoosesTree(*round.generation)) trees_[GroupOf(*round.generation)].Observe(round);
  if (drafted.empty()) {
    ++kind.plain_rounds;
    return;
  }
  CountAttempt(kind);
  kind.proposed.Observe(1);
  if (!IsChain(drafted)) return ObserveTree(kind, round);
  if (round.ahead.runs) ObserveOutcome(kind, round);
  const v1::ItemTiming& draft = round.times.draft_server;
  const double batch = std::max<uint32_t>(draft.batch_sequences(), 1);
  const int steps = round.ahead.steps > 0 ? round.ahead.steps : static_cast<int>(drafted.size());
  const double step = Micros(draft.compute_us()) / steps;
  kind.step_seconds.Observe(step);
  kind.draft_batch.Observe(batch);
  if (running_ == 1) kind.step.Observe(batch, step);
  if (running_ == 1 && round.ahead.steps == 0) {
    kind.proposal.Observe(static_cast<double>(drafted.size()), Micros(draft.compute_us()));
    kind.draft_wire.Observe(outrider::Seconds(round.times.draft) - Micros(draft.compute_us()));
  }
  kind.knows_confidence = drafted.front().confidence > 0;
  if (kind.knows_confidence) {
    kind.by_confidence.Observe(drafted, accepted);
    kind.accepted.Observe(accepted > 0 ? 1 : 0);
    return;
  }
  const auto judged = static_cast<double>(std::min(accepted + 1, drafted.size()));
  kind.accepted.Observe(static_cast<double>(accepted) / judged, judged);
}

}  // namespace outrider
