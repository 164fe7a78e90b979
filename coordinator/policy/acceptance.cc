#include "coordinator/policy/acceptance.h"

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

}  // namespace outrider
