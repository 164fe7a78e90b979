#include "coordinator/policy/measured_rounds.h"

#include <cmath>
#include <functional>
#include <numeric>

namespace outrider {
namespace {

// The weight of the overall share, in observations, for one generation and for one bin of confidence.
constexpr double kPriorTokens = 60;
constexpr double kPriorOfABin = 4;

constexpr double kClearGain = 0.03;  // the logarithm of a ratio of times
// Trials of the slower way take at most a ninth of the rounds, and a 65th in the end. A surprise is
// soon checked again, as it may be chance.
constexpr int kFirstPauseInTrials = 8;
constexpr int kLongestPauseInTrials = 64;

constexpr double kPriorWeight = 8;  // ChildStands counts as this many observations of a child
// A tree is tried if its predicted rate is kWorthATrial times the chain's rate, since its times are known
// less well, and kMoreThanAChain times the rate that the same calculation predicts for a chain.
constexpr double kWorthATrial = 0.95;
constexpr double kMoreThanAChain = 1.02;
// Larger trees gain little.
constexpr int kMostLevels = 12;
constexpr int kMostNodes = 128;

}  // namespace

std::vector<NamedOutcome> LikelyOutcomes(std::span<const ProposalNode> chain, const OutcomeChances& chances) {
  std::vector<NamedOutcome> outcomes;
  double reached = 1;
  for (size_t a = 0; a < chain.size(); ++a) {
    const size_t ranks = std::min(chain[a].alternatives.size(), chances.corrected.size());
    for (size_t r = 0; r < ranks; ++r) {
      outcomes.push_back(
          {a, static_cast<int>(r), reached * (1 - chances.accepted[a]) * chances.corrected[r]});
    }
    reached *= chances.accepted[a];
  }
  outcomes.push_back({chain.size(), 0, reached * chances.continued});
  std::ranges::stable_sort(outcomes, std::greater<>(), &NamedOutcome::chance);
  return outcomes;
}

void Acceptance::Observe(std::span<const ProposalNode> chain, size_t accepted) {
  knows_confidence_ = chain.front().confidence > 0;
  if (knows_confidence_) {
    by_confidence_.Observe(chain, accepted);
    all_.Observe(accepted > 0 ? 1 : 0);
    return;
  }
  const auto judged = static_cast<double>(std::min(accepted + 1, chain.size()));
  all_.Observe(static_cast<double>(accepted) / judged, judged);
}

void Acceptance::ObserveAhead(std::span<const ProposalNode> chain, const Verdict& verdict, int branches,
                              bool hit) {
  const size_t accepted = verdict.path.size();
  const bool whole = accepted == chain.size();
  if (branches > 0) (whole ? whole_hits_ : corrected_hits_).Observe(hit ? 1 : 0);
  if (whole) return;
  if (branches > 0) foreseeable_.Observe(Foreseeable(alpha(), static_cast<int>(chain.size()), branches));
  const std::vector<TokenId>& others = chain[accepted].alternatives;
  for (size_t r = 0; r < std::min<size_t>(others.size(), kRanks); ++r) {
    corrected_[r].Observe(others[r] == verdict.token ? 1 : 0);
  }
}

double Acceptance::AlphaOfBin(int bin) const {
  if (bin == AcceptanceByConfidence::kUnknown) return alpha();
  return by_confidence_.Of(bin).MeanWithPrior(alpha(), kPriorOfABin);
}

double Acceptance::ExpectedTokens(std::span<const ProposalNode> chain) const {
  double tokens = 1, reached = 1;
  for (const ProposalNode& node : chain) {
    reached *= AlphaOfBin(AcceptanceByConfidence::BinOf(node.confidence));
    tokens += reached;
  }
  return tokens;
}

double Acceptance::ExcessOfRejections(const AcceptanceByConfidence& own) const {
  const double prior = kPriorTokens * (1 - alpha());
  double rejected = prior, expected = prior;
  for (int bin = 0; bin <= AcceptanceByConfidence::kUnknown; ++bin) {
    rejected += own.judged(bin) - own.accepted(bin);
    expected += own.judged(bin) * (1 - AlphaOfBin(bin));
  }
  return expected > 0 ? rejected / expected : 1;
}

double Acceptance::Foreseeable(double alpha, int k, int branches) const {
  std::vector<double> chances;
  double reached = 1;
  for (int accepted = 0; accepted < k; ++accepted) {
    for (int rank = 0; rank < kRanks; ++rank) chances.push_back(reached * (1 - alpha) * Corrected(rank));
    reached *= alpha;
  }
  if (reached >= 1) return 0;
  const auto others =
      std::min<size_t>(branches - 1, chances.size());  // one branch follows the whole proposal
  std::ranges::partial_sort(chances, chances.begin() + others, std::greater<>());
  return std::reduce(chances.begin(), chances.begin() + others) / (1 - reached);
}

double Acceptance::CorrectedHit(double alpha, int k, int branches) const {
  const double hit = corrected_hits_.MeanWithPrior(kUnknownCorrected, kPriorOfAnOutcome);
  const double foreseeable = foreseeable_.MeanWithPrior(kUnknownCorrected, kPriorOfAnOutcome);
  return std::min(hit / foreseeable * Foreseeable(alpha, k, branches), 1.0);
}

std::vector<NamedOutcome> Acceptance::Outcomes(std::span<const ProposalNode> chain) const {
  std::vector<double> accepted, corrected;
  for (const ProposalNode& node : chain) {
    accepted.push_back(AlphaOfBin(AcceptanceByConfidence::BinOf(node.confidence)));
  }
  for (size_t r = 0; r < kRanks; ++r) {
    corrected.push_back(Corrected(static_cast<int>(r)));
  }
  return LikelyOutcomes(chain, {accepted, corrected, WholeHit(alpha())});
}

void DraftCosts::ObserveChain(const RoundReport& round) {
  proposed_.Observe(1);
  if (round.catches_up && proposal_.weight() > 0) return;
  const v1::ItemTiming& draft = round.times.draft_server;
  const double seconds = ComputeSeconds(draft), batch = std::max<uint32_t>(draft.batch_sequences(), 1);
  const double step = seconds / (round.ahead.steps > 0 ? round.ahead.steps : round.drafted());
  step_seconds_.Observe(step);
  draft_batch_.Observe(batch);
  if (round.running != 1) return;
  step_.Observe(batch, step);
  if (round.ahead.steps > 0) return;
  proposal_.Observe(round.drafted(), seconds);
  draft_wire_.Observe(Seconds(round.times.draft) - seconds);
}

void DraftCosts::ObserveTree(const RoundReport& round) {
  proposed_.Observe(1);
  if (round.running != 1) return;
  const double levels = Depth(*round.proposal);
  step_.Observe(round.drafted() / levels, ComputeSeconds(round.times.draft_server) / levels);
}

void DraftCosts::Age(double proposals) {
  proposal_.Age(proposals);
  step_.Age(proposals);
  for (RunningMean* mean : {&step_seconds_, &draft_wire_, &draft_batch_, &proposed_, &failed_seconds_}) {
    mean->Age(proposals);
  }
}

double DraftCosts::Propose(int k, int running) const {
  if (running <= 1) return draft_wire_.mean(0) + proposal_.Seconds(k);
  // All of a mean step that is not fixed.
  const double sequence = std::max(step_seconds_.mean(0) - step_.fixed(), 0.0) / draft_batch_.mean(1);
  return draft_wire_.mean(0) / running + k * (step_.fixed() / draft_batch_.mean(1) + sequence);
}

bool MeasuredChoice::Next(int unsettled) {
  const bool before = other_is_better_ != trying_;
  if (pause_ == 0) {
    // Nothing is known yet, and the first rounds are slow for other reasons.
    pause_ = kFirstPauseInTrials * trial_;
    rounds_left_ = kRoundsOfATrial;
  }
  if (rounds_left_-- == 0) {
    if (trying_) {
      EndTrial();
    } else {
      rounds_left_ = trial_ - 1;
      trying_ = true;
      // Old measurements cannot be compared with present ones.
      (other_is_better_ ? usual_ : other_) = RunningMean();
    }
  }
  const bool other = other_is_better_ != trying_;
  if (other != before) unsettled_ = unsettled;
  return other;
}

void MeasuredChoice::EndTrial() {
  trying_ = false;
  const double sign = other_is_better_ ? 1 : -1;
  const double ratio = usual_.sum() > 0 && other_.sum() > 0 ? std::log(other_.mean(0) / usual_.mean(0)) : 0;
  ratio_.Observe(ratio);
  const bool seems_better = sign * ratio > kClearGain;
  const bool is_better = seems_better && sign * ratio_.mean(0) > kClearGain;
  if (is_better) other_is_better_ = !other_is_better_;
  pause_ = seems_better ? kFirstPauseInTrials * trial_ : std::min(2 * pause_, kLongestPauseInTrials * trial_);
  rounds_left_ = pause_ - 1;
}

double TreeChoice::AcceptanceOf(int depth, int rank) const {
  const auto& ranks = accepted_[std::min(depth, kDepths - 1)];
  const double first = ranks[0].MeanWithPrior(kFirstChildStands, kPriorWeight);
  return rank == 0 ? first : ranks[rank].MeanWithPrior(ChildStands(rank, first), kPriorWeight);
}

void TreeChoice::Compare(const std::vector<LikelyNode>& tree, int depth, const TreeCosts& costs,
                         Candidate& best) const {
  std::array<std::array<double, kRanks>, kMostLevels> stands;
  for (int level = 0; level < depth; ++level) {
    for (int rank = 0; rank < kRanks; ++rank) stands[level][rank] = AcceptanceOf(level, rank);
  }
  std::vector<double> reached;
  std::array<int, kMostLevels> widths = {};
  double tokens = 1, drafting = costs.round;
  bool is_chain = true;
  for (const LikelyNode& node : tree) {
    reached.push_back((node.parent < 0 ? 1 : reached[node.parent]) * stands[node.level][node.rank]);
    tokens += reached.back();
    // The draft draws the nodes of a level in one step, and feeds them together to the next.
    const bool opens_level = widths[node.level]++ == 0;
    const bool is_fed = node.level + 1 < depth;
    drafting += opens_level ? costs.level : is_fed ? costs.node : 0;
    const double seconds = drafting + costs.verify->Seconds(1 + static_cast<double>(reached.size()));
    is_chain = is_chain && node.rank == 0;
    const bool is_as_deep = widths[depth - 1] > 0;
    if (is_chain) {
      best.chain_rate = std::max(best.chain_rate, tokens / seconds);
    } else if (is_as_deep && tokens > best.rate * seconds) {
      best.nodes = static_cast<int>(reached.size());
      best.depth = depth;
      best.rate = tokens / seconds;
    }
  }
}

TreeChoice::Candidate TreeChoice::Best(const TreeCosts& costs, int depth, int nodes) {
  Candidate best;
  nodes = std::min(nodes, kMostNodes);
  for (int d = 1; d <= std::min(depth, kMostLevels); ++d) {
    const auto [tree, is_new] = trees_.try_emplace({nodes, d});
    if (is_new) tree->second = LikeliestNodes(nodes, d);
    Compare(tree->second, d, costs, best);
  }
  return best;
}

std::optional<DraftLength> TreeChoice::Next(double chain_rate, const TreeCosts& costs, int depth, int nodes) {
  if (!choice_.Next()) return std::nullopt;
  const Candidate best = Best(costs, depth, nodes);
  if (best.nodes == 0 || best.rate < std::max(kWorthATrial * chain_rate, kMoreThanAChain * best.chain_rate))
    return std::nullopt;
  return DraftLength{.most = best.depth, .tree = NodeBudget{best.nodes}};
}

void TreeChoice::Observe(const RoundReport& round) {
  for (const OfferedNode& node : OfferedNodes(*round.proposal, round.verdict->path)) {
    if (node.rank >= kRanks) continue;
    accepted_[std::min(node.depth, kDepths - 1)][node.rank].Observe(node.accepted ? 1 : 0);
  }
  choice_.Observe(!IsChain(*round.proposal), Seconds(round.times.round), round.emitted);
}

}  // namespace outrider
