#include "coordinator/policy/measured_rounds.h"

#include <algorithm>
#include <functional>

namespace outrider {
namespace {

constexpr double kUnknownAcceptance = 0.7;
// How many observations the overall share counts as, in one generation and in one bin of confidence.
constexpr double kPriorTokens = 60;
constexpr double kPriorOfABin = 4;
// How often the draft's second, third, ... choice replaces a rejected token, and any that was drafted for,
// and how many observations these guesses count as.
constexpr std::array<double, kRanks> kCorrectedAtFirst = {0.35, 0.15, 0.08, 0.05};
constexpr double kUnknownCorrected = 0.35;
constexpr double kPriorOfAnOutcome = 4;

double ComputeSeconds(const v1::ItemTiming& timing) { return 1e-6 * timing.compute_us(); }

// Under load, the part of a mean step that is not fixed belongs to the units.
double PerUnit(const LinearTime& alone, const RunningMean& seconds, const RunningMean& size, int running) {
  if (running <= 1) return alone.per_unit();
  return std::max(seconds.mean(0) - alone.fixed(), 0.0) / size.mean(1);
}

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

void Acceptance::ObserveAhead(std::span<const ProposalNode> chain, const Verdict& verdict, bool drafted_for,
                              bool hit) {
  const size_t accepted = verdict.path.size();
  const bool whole = accepted == chain.size();
  if (drafted_for) (whole ? whole_hits_ : corrected_hits_).Observe(hit ? 1 : 0);
  if (whole) return;
  const std::vector<TokenId>& others = chain[accepted].alternatives;
  for (size_t r = 0; r < std::min<size_t>(others.size(), kRanks); ++r) {
    corrected_[r].Observe(others[r] == verdict.token ? 1 : 0);
  }
}

double Acceptance::alpha() const { return all_.mean(kUnknownAcceptance); }

double Acceptance::Of(int bin) const {
  if (bin == AcceptanceByConfidence::kUnknown) return alpha();
  return by_confidence_.Of(bin).Learnt(alpha(), kPriorOfABin);
}

double Acceptance::ExcessOfRejections(const AcceptanceByConfidence& own) const {
  const double prior = kPriorTokens * (1 - alpha());
  double rejected = prior, expected = prior;
  for (int bin = 0; bin <= AcceptanceByConfidence::kUnknown; ++bin) {
    rejected += own.judged(bin) - own.accepted(bin);
    expected += own.judged(bin) * (1 - Of(bin));
  }
  return expected > 0 ? rejected / expected : 1;
}

double Acceptance::WholeHit(double alpha) const { return whole_hits_.Learnt(alpha, kPriorOfAnOutcome); }

double Acceptance::CorrectedHit() const {
  return corrected_hits_.Learnt(kUnknownCorrected, kPriorOfAnOutcome);
}

std::vector<NamedOutcome> Acceptance::Outcomes(std::span<const ProposalNode> chain) const {
  std::vector<double> accepted, corrected;
  for (const ProposalNode& node : chain) {
    accepted.push_back(Of(AcceptanceByConfidence::BinOf(node.confidence)));
  }
  for (size_t r = 0; r < kRanks; ++r) {
    corrected.push_back(corrected_[r].Learnt(kCorrectedAtFirst[r], kPriorOfAnOutcome));
  }
  return LikelyOutcomes(chain, {accepted, corrected, WholeHit(alpha())});
}

void RoundCosts::ObserveVerify(const RoundTimes& times, int running) {
  const v1::ItemTiming& verify = times.verify_server;
  if (verify.batch_rows() == 0) return;
  const double seconds = ComputeSeconds(verify);
  verify_seconds_.Observe(seconds);
  verify_rows_.Observe(verify.batch_rows());
  verify_batch_.Observe(verify.batch_sequences());
  if (running != 1) return;
  verify_.Observe(verify.batch_rows(), seconds);
  verify_wire_.Observe(Seconds(times.verify) - seconds);
}

void RoundCosts::ObserveChain(const RoundReport& round) {
  proposed_.Observe(1);
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

void RoundCosts::ObserveTree(const RoundReport& round) {
  proposed_.Observe(1);
  if (round.running != 1) return;
  const double levels = Depth(*round.proposal);
  step_.Observe(round.drafted() / levels, ComputeSeconds(round.times.draft_server) / levels);
}

void RoundCosts::ObserveFailure(const RoundTimes& times) {
  proposed_.Observe(0);
  failed_seconds_.Observe(Seconds(times.draft));
}

void RoundCosts::AgeDraft(double proposals) {
  proposal_.Age(proposals);
  step_.Age(proposals);
  for (RunningMean* mean : {&step_seconds_, &draft_wire_, &draft_batch_, &proposed_, &failed_seconds_}) {
    mean->Age(proposals);
  }
}

double RoundCosts::Verify(int k, int running) const {
  const double row = PerUnit(verify_, verify_seconds_, verify_rows_, running);
  return verify_.fixed() / verify_batch_.mean(1) + row * (k + 1) +
         verify_wire_.mean(0) / std::max(running, 1);
}

double RoundCosts::Propose(int k, int running) const {
  if (running <= 1) return draft_wire_.mean(0) + proposal_.fixed() + k * proposal_.per_unit();
  const double sequence = PerUnit(step_, step_seconds_, draft_batch_, running);
  return draft_wire_.mean(0) / running + k * (step_.fixed() / draft_batch_.mean(1) + sequence);
}

double RoundCosts::Failure(int running) const { return failed_seconds_.mean(0) / std::max(running, 1); }

TreeCosts RoundCosts::tree() const {
  return {.round = Verify(0, 1) - verify_.per_unit() + draft_wire_.mean(0) + proposal_.fixed(),
          .row = verify_.per_unit(),
          .level = proposal_.per_unit(),
          .node = step_.per_unit()};
}

}  // namespace outrider
