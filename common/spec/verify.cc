#include "common/spec/verify.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <utility>

#include "common/spec/check.h"
#include "common/spec/residual.h"
#include "common/spec/selection.h"
#include "common/spec/status.h"
#include "common/spec/team/row_draw.h"
#include "common/spec/team/team_of_one.h"

namespace outrider {
namespace {

// norm(max(scale * p - q, 0)).
Residual RestOf(const WeightRow& p, const Distribution& q, double scale) {
  Residual rest(p, scale);
  rest.Subtract(q);
  return rest;
}

// The Chain of JudgeChain, on the host.
class HostChain {
 public:
  HostChain(std::span<const ProposalNode> proposal, RowSource rows, double lenience)
      : proposal_(proposal), rows_(rows), lenience_(lenience) {}

  bool Reach(int i) {
    index_ = static_cast<size_t>(i);
    row_ = rows_(i);
    return row_.ok();
  }
  absl::Status status() const { return row_.status(); }
  std::vector<double> TakeLogProbabilities() { return std::move(log_probabilities_); }

  const WeightRow& row() const { return *row_; }
  TokenId point_mass() const { return row().point_mass; }
  double Probability(TokenId token) const {
    if (!ComparesLogits()) return row()(token);
    return std::exp(row().logits[token] - LogSumExp(row().logits));
  }
  double Entropy() const { return outrider::Entropy(row()); }
  TokenId Sample(double u) const { return outrider::Sample(row(), u); }
  void Record(double log_probability) { log_probabilities_.push_back(log_probability); }

  TokenId token() const { return node().token; }
  double Overlap() const { return lenience_ == 1 ? outrider::Overlap(row(), q()) : 0; }
  bool Accepts(double u) const {
    const auto compared = [&](TokenId x) { return lenience_ * q()(x); };
    return outrider::Accepts(u, token(), row(), compared);
  }
  bool AcceptsWithoutNoise() const {
    if (!ComparesLogits()) return token() == point_mass();
    return row().logits[token()] >= row().logits[point_mass()] + std::log(lenience_);
  }
  Residual Rest() const { return RestOf(row(), q(), 1); }

 private:
  const ProposalNode& node() const { return proposal_[index_]; }
  const Distribution& q() const { return node().q; }
  // At temperature 0 lenience needs the model's distribution before the argmax (appendix A.5).
  bool ComparesLogits() const { return lenience_ < 1 && point_mass() >= 0; }

  std::span<const ProposalNode> proposal_;
  RowSource rows_;
  double lenience_;
  size_t index_ = 0;
  absl::StatusOr<WeightRow> row_;
  std::vector<double> log_probabilities_;
};

// The Draft of ProposeToken, on the host.
class HostDraft {
 public:
  HostDraft(const WeightRow& row, int top_n) : row_(row), top_n_(top_n) {}

  const WeightRow& row() const { return row_; }
  TokenId point_mass() const { return row_.point_mass; }
  void MakeQ() { q_ = TruncateTopN(row_, top_n_); }
  TokenId Sample(double u) const { return outrider::Sample(q_, u); }
  Distribution TakeQ() { return std::move(q_); }

 private:
  const WeightRow& row_;
  const int top_n_;
  Distribution q_;
};

// One emitted token's part of a verdict.
struct Emitted {
  double log_probability, entropy;
};

Emitted Emit(const WeightRow& row, TokenId token) { return {std::log(row(token)), Entropy(row)}; }

// Sun et al. 2403.10444, Algorithm 2. With ratio_i = min(ratio_{i-1} p(x_i) / q(x_i), 1), the prefix of i
// tokens passes if eta_i < h_i, where h_K = ratio_K and for i < K, over the next position's p and q,
//   h_i = S / (S + 1 - ratio_i),  S = sum_x max(ratio_i p(x) - q(x), 0).
// The longest prefix that passes is accepted; the empty one always passes. Since S = ratio_i - overlap with
// overlap = sum_x min(ratio_i p(x), q(x)), h_i = (ratio_i - overlap) / (1 - overlap). Once a ratio is 0 no
// longer prefix can pass. The correction after i < K tokens comes from norm(max(ratio_i p - q, 0)).
absl::StatusOr<Verdict> VerifyBlockRule(std::span<const ProposalNode> proposal, RowSource rows, uint64_t n,
                                        Noise& noise) {
  std::vector<Emitted> emitted;  // for x_1, x_2, ..., of the accepted prefix and maybe beyond
  size_t length = 0;             // of the accepted prefix; prefix_ratio and row belong to it
  double prefix_ratio = 1;
  WeightRow row;
  double ratio = 1;
  for (size_t i = 0; i <= proposal.size() && ratio > 0; ++i) {
    const WeightRow next = OUTRIDER_TRY(rows(static_cast<int>(i)));
    double h = ratio;
    if (i < proposal.size()) {
      const double overlap = Overlap(next, proposal[i].q, ratio);
      h = overlap < 1 ? (ratio - overlap) / (1 - overlap) : 0;
    }
    if (i == 0 || noise.Test(Purpose::kAccept, n + i - 1, 0, [h](double u) { return u < h; })) {
      length = i;
      prefix_ratio = ratio;
      row = next;
    }
    if (i < proposal.size()) {
      emitted.push_back(Emit(next, proposal[i].token));
      ratio = std::min(ratio * next(proposal[i].token) / proposal[i].q(proposal[i].token), 1.0);
    }
  }
  ChainVerdict verdict{.accepted = static_cast<int>(length)};
  if (length == proposal.size()) {
    verdict.token = DrawToken(row.point_mass, Purpose::kBonus, n + length, noise,
                              [&](double u) { return Sample(row, u); });
  } else {
    const Residual rest = RestOf(row, proposal[length].q, prefix_ratio);
    verdict.empty_residual = rest.empty() ? 1 : 0;
    verdict.token = DrawToken(row.point_mass, Purpose::kResidual, n + length, noise,
                              [&](double u) { return rest.Sample(u); });
  }
  emitted.resize(length);
  emitted.push_back(Emit(row, verdict.token));
  std::vector<double> log_probabilities;
  for (const Emitted& token : emitted) {
    verdict.Emit(token.log_probability, token.entropy);
    log_probabilities.push_back(token.log_probability);
  }
  return VerdictOf(verdict, static_cast<int>(proposal.size()), std::move(log_probabilities));
}

// The first `count` tokens in Race's order, without `excluded`. A bound rules out most tokens before their
// logarithm is taken, as in RaceRow.
std::vector<TokenId> RaceOrder(std::span<const float> weights, const RandomKey& key, uint64_t position,
                               TokenId excluded, size_t count) {
  std::vector<std::pair<double, TokenId>> best;  // {time, token}, ascending
  for (size_t first = 0; first < weights.size(); first += 4) {
    const std::array<uint64_t, 4> bits =
        RandomBits(key, {position, static_cast<uint64_t>(Purpose::kGumbel), first / 4, 0});
    for (size_t x = first; x < std::min(first + 4, weights.size()); ++x) {
      const double latest = best.size() < count ? HUGE_VAL : best.back().first;
      const double u = UnitInterval(bits[x - first]);
      if (weights[x] == 0 || static_cast<TokenId>(x) == excluded || u >= latest * weights[x]) continue;
      const std::pair entry(-std::log1p(-u) / weights[x], static_cast<TokenId>(x));
      best.insert(std::upper_bound(best.begin(), best.end(), entry), entry);
      if (best.size() > count) best.pop_back();
    }
  }
  std::vector<TokenId> order;
  for (const auto& [time, token] : best) order.push_back(token);
  return order;
}

}  // namespace

Verdict VerdictOf(const ChainVerdict& chain, int proposed, std::vector<double> log_probabilities) {
  Verdict verdict;
  verdict.path = ChainPath(static_cast<size_t>(chain.accepted));
  verdict.token = chain.token;
  verdict.kind = proposed == 0                ? Verdict::Kind::kPlain
                 : chain.accepted == proposed ? Verdict::Kind::kBonus
                                              : Verdict::Kind::kCorrected;
  verdict.empty_residual = chain.empty_residual != 0;
  verdict.log_probabilities = std::move(log_probabilities);
  verdict.expected_accepted = chain.expected_accepted;
  verdict.expected_variance = chain.expected_variance;
  verdict.judged = std::min(chain.accepted + 1, proposed);
  verdict.surprisal = chain.surprisal;
  verdict.entropy = chain.entropy;
  return verdict;
}

absl::Status ValidateVerifyOptions(const VerifyOptions& options) {
  if (!(options.lenience > 0 && options.lenience <= 1)) {
    return OutOfRange("lenience", options.lenience, "(0, 1]");
  }
  if (options.lenience < 1 && options.rule != Rule::kToken) {
    return FieldError("lenience", "1, or the token rule", "below 1 it needs the token rule");
  }
  if (options.sibling_order == SiblingOrder::kRandom && options.rule != Rule::kToken) {
    return FieldError("sibling_order", "given, or the token rule", "a random order needs the token rule");
  }
  return absl::OkStatus();
}

TokenId PhiloxNoise::Race(uint64_t position, const WeightRow& row) {
  return outrider::Race(row, numbers_.key, position);
}

absl::StatusOr<Verdict> Verify(const VerifyOptions& options, std::span<const ProposalNode> proposal,
                               RowSource rows, uint64_t round_start, Noise& noise) {
  OUTRIDER_TRY(ValidateVerifyOptions(options));
  if (!IsChain(proposal)) return VerifyTree(options, proposal, rows, round_start, noise);
  const bool coupled = options.rule == Rule::kCoupled;
  for (const ProposalNode& node : proposal) {
    if (!coupled && node.q.form == Distribution::Form::kAbsent) return QMissingError();
  }
  if (options.rule == Rule::kBlock) return VerifyBlockRule(proposal, rows, round_start, noise);
  HostChain chain(proposal, rows, options.lenience);
  const int drafted = static_cast<int>(proposal.size());
  ChainVerdict verdict;
  if (!JudgeChain(chain, drafted, coupled, round_start, noise, &verdict)) return chain.status();
  return VerdictOf(verdict, drafted, chain.TakeLogProbabilities());
}

absl::StatusOr<Verdict> Verify(const VerifyOptions& options, std::span<const ProposalNode> proposal,
                               RowSource rows, uint64_t round_start, const RandomKey& key) {
  PhiloxNoise noise(key, round_start);
  return Verify(options, proposal, rows, round_start, noise);
}

ProposalNode Propose(Rule rule, const WeightRow& row, int top_n, uint64_t position, Noise& noise) {
  HostDraft draft(row, top_n);
  const TokenId token = ProposeToken(draft, rule == Rule::kCoupled, position, noise);
  return {.token = token, .q = draft.TakeQ()};
}

TokenId DraftSample(const Distribution& q, uint64_t position, Noise& noise) {
  const TokenId point_mass = q.form == Distribution::Form::kPointMass ? q.ids[0] : -1;
  return DrawToken(point_mass, Purpose::kDraft, position, noise, [&](double u) { return Sample(q, u); });
}

TokenId DraftSample(const Distribution& q, const RandomKey& key, uint64_t position, uint64_t round_start) {
  PhiloxNoise noise(key, round_start);
  return DraftSample(q, position, noise);
}

TokenId Race(const WeightRow& row, const RandomKey& key, uint64_t position) {
  if (row.point_mass >= 0) return row.point_mass;
  team::TeamOfOne team;
  const int n = static_cast<int>(row.weights.size());
  const int winner = team::RaceRow(team, row.weights.data(), n, key, position);
  OUTRIDER_CHECK(winner < n);
  return winner;
}

std::vector<TokenId> Alternatives(Rule rule, const WeightRow& row, const RandomKey& key, uint64_t position,
                                  TokenId proposed, int count) {
  if (count <= 0) return {};
  if (rule == Rule::kCoupled && row.point_mass < 0) {
    return RaceOrder(row.weights, key, position, proposed, static_cast<size_t>(count));
  }
  std::vector<TokenId> order;
  const bool by_logits = row.point_mass >= 0;
  for (const WeightedToken& token : LargestOf(by_logits ? row.logits : row.weights, count + 1)) {
    const bool possible = by_logits || token.value > 0;
    if (possible && token.id != proposed && std::ssize(order) < count) order.push_back(token.id);
  }
  return order;
}

}  // namespace outrider
