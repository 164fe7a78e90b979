#include "common/spec/verify.h"

#include <algorithm>
#include <cmath>

#include "absl/container/inlined_vector.h"
#include "common/spec/accepts.h"
#include "common/spec/check.h"
#include "common/spec/residual.h"
#include "common/spec/status.h"
#include "common/spec/team/row_draw.h"
#include "common/spec/team/team_of_one.h"

namespace outrider {
namespace {

// What a verdict says about one position.
struct Emitted {
  double log_probability = 0;
  double entropy = 0;
};

Emitted Emit(const WeightRow& row, TokenId token) { return {std::log(row(token)), Entropy(row)}; }

void Record(const Emitted& emitted, Verdict& verdict) {
  verdict.log_probabilities.push_back(emitted.log_probability);
  verdict.surprisal -= emitted.log_probability;
  verdict.entropy += emitted.entropy;
}

TokenId DrawBonus(const WeightRow& row, uint64_t position, Noise& noise) {
  if (row.point_mass >= 0) return row.point_mass;
  return noise.Decide(Purpose::kBonus, position, 0, [&](double u) { return Sample(row, u); });
}

// The token that replaces a rejected one, from norm(max(scale * p - q, 0)).
TokenId DrawCorrection(const WeightRow& p, const Distribution& q, double scale, uint64_t position,
                       Noise& noise, Verdict& verdict) {
  Residual residual(p, scale);
  residual.Subtract(q);
  verdict.empty_residual = residual.empty();
  if (p.point_mass >= 0) return p.point_mass;
  return noise.Decide(Purpose::kResidual, position, 0, [&](double u) { return residual.Sample(u); });
}

// The end of every rule: the first `count` nodes stand and `token` follows.
void Finish(const WeightRow& row, TokenId token, size_t count, size_t proposed, Verdict& verdict) {
  verdict.path = ChainPath(count);
  verdict.token = token;
  verdict.kind = proposed == 0       ? Verdict::Kind::kPlain
                 : count == proposed ? Verdict::Kind::kBonus
                                     : Verdict::Kind::kCorrected;
  verdict.judged = static_cast<int>(std::min(count + 1, proposed));
  Record(Emit(row, token), verdict);
}

// Whether the token rule accepts a node whose position has the target's distribution p.
bool Accept(const WeightRow& p, const ProposalNode& node, double lenience, uint64_t position, Noise& noise) {
  if (p.point_mass >= 0) {
    if (lenience == 1) return node.token == p.point_mass;
    // At temperature 0 lenience compares with the model's distribution before the argmax (appendix A.5).
    return p.logits[node.token] >= p.logits[p.point_mass] + std::log(lenience);
  }
  const auto q = [&](TokenId x) { return lenience * node.q(x); };
  return noise.Test(Purpose::kAccept, position, 0, [&](double u) { return Accepts(u, node.token, p, q); });
}

absl::StatusOr<Verdict> VerifyTokenRule(double lenience, std::span<const ProposalNode> proposal,
                                        RowSource rows, uint64_t n, Noise& noise) {
  Verdict verdict;
  for (size_t i = 0; i < proposal.size(); ++i) {
    const absl::StatusOr<WeightRow> row = rows(static_cast<int>(i));
    if (!row.ok()) return row.status();
    if (lenience == 1) {
      const double b = std::min(Overlap(*row, proposal[i].q), 1.0);
      verdict.expected_accepted += b;
      verdict.expected_variance += b * (1 - b);
    }
    if (!Accept(*row, proposal[i], lenience, n + i, noise)) {
      const TokenId token = DrawCorrection(*row, proposal[i].q, 1, n + i, noise, verdict);
      Finish(*row, token, i, proposal.size(), verdict);
      return verdict;
    }
    Record(Emit(*row, proposal[i].token), verdict);
  }
  const absl::StatusOr<WeightRow> row = rows(static_cast<int>(proposal.size()));
  if (!row.ok()) return row.status();
  const TokenId token = DrawBonus(*row, n + proposal.size(), noise);
  Finish(*row, token, proposal.size(), proposal.size(), verdict);
  return verdict;
}

// Sun et al. 2403.10444, Algorithm 2. With ratio_i = min(ratio_{i-1} p(x_i) / q(x_i), 1), the prefix of i
// tokens passes if eta_i < h_i, where h_K = ratio_K and for i < K, over the next position's p and q,
//   h_i = S / (S + 1 - ratio_i),  S = sum_x max(ratio_i p(x) - q(x), 0).
// The longest prefix that passes stands; the empty one always does. Since S = ratio_i - overlap with overlap
// = sum_x min(ratio_i p(x), q(x)), h_i = (ratio_i - overlap) / (1 - overlap). The correction after i < K
// tokens comes from norm(max(ratio_i p - q, 0)). Once a ratio is 0 no longer prefix can pass.
absl::StatusOr<Verdict> VerifyBlockRule(std::span<const ProposalNode> proposal, RowSource rows, uint64_t n,
                                        Noise& noise) {
  Verdict verdict;
  absl::InlinedVector<Emitted, 8> judged;  // of x_1, x_2, ...
  // The longest prefix that has passed, its ratio, and the row after it.
  size_t longest = 0;
  double longest_ratio = 1;
  WeightRow longest_row;
  double ratio = 1;
  for (size_t i = 0; i <= proposal.size() && ratio > 0; ++i) {
    const absl::StatusOr<WeightRow> row = rows(static_cast<int>(i));
    if (!row.ok()) return row.status();
    double h = ratio;
    if (i < proposal.size()) {
      const double overlap = Overlap(*row, proposal[i].q, ratio);
      h = overlap < 1 ? (ratio - overlap) / (1 - overlap) : 0;
    }
    if (i == 0 || noise.Test(Purpose::kAccept, n + i - 1, 0, [h](double u) { return u < h; })) {
      longest = i;
      longest_ratio = ratio;
      longest_row = *row;
    }
    if (i < proposal.size()) {
      judged.push_back(Emit(*row, proposal[i].token));
      ratio = std::min(ratio * (*row)(proposal[i].token) / proposal[i].q(proposal[i].token), 1.0);
    }
  }
  for (size_t i = 0; i < longest; ++i) Record(judged[i], verdict);
  const TokenId token =
      longest == proposal.size()
          ? DrawBonus(longest_row, n + longest, noise)
          : DrawCorrection(longest_row, proposal[longest].q, longest_ratio, n + longest, noise, verdict);
  Finish(longest_row, token, longest, proposal.size(), verdict);
  return verdict;
}

absl::StatusOr<Verdict> VerifyCoupledRule(std::span<const ProposalNode> proposal, RowSource rows, uint64_t n,
                                          Noise& noise) {
  Verdict verdict;
  for (size_t i = 0;; ++i) {
    const absl::StatusOr<WeightRow> row = rows(static_cast<int>(i));
    if (!row.ok()) return row.status();
    const TokenId token = row->point_mass >= 0 ? row->point_mass : noise.Race(n + i, *row);
    if (i == proposal.size() || token != proposal[i].token) {
      Finish(*row, token, i, proposal.size(), verdict);
      return verdict;
    }
    Record(Emit(*row, token), verdict);
  }
}

}  // namespace

absl::Status ValidateVerifyOptions(const VerifyOptions& options) {
  if (!(options.lenience > 0 && options.lenience <= 1)) {
    return OutOfRange("lenience", options.lenience, "(0, 1]");
  }
  if (options.lenience < 1 && options.rule != Rule::kToken) {
    return FieldError("lenience", "1, or the token rule", "below 1 it needs the token rule");
  }
  return absl::OkStatus();
}

int PhiloxNoise::Decide(Purpose purpose, uint64_t position, uint64_t candidate,
                        absl::FunctionRef<int(double)> step) {
  return step(Uniform(key_, position, purpose, candidate, round_start_));
}

TokenId PhiloxNoise::Race(uint64_t position, const WeightRow& row) {
  return outrider::Race(row, key_, position);
}

absl::StatusOr<Verdict> Verify(const VerifyOptions& options, std::span<const ProposalNode> proposal,
                               RowSource rows, uint64_t round_start, Noise& noise) {
  OUTRIDER_CHECK(IsChain(proposal));
  if (absl::Status status = ValidateVerifyOptions(options); !status.ok()) return status;
  if (options.rule == Rule::kCoupled) return VerifyCoupledRule(proposal, rows, round_start, noise);
  for (const ProposalNode& node : proposal) {
    if (node.q.form == Distribution::Form::kAbsent) {
      return QMissingError();
    }
  }
  if (options.rule == Rule::kBlock) return VerifyBlockRule(proposal, rows, round_start, noise);
  return VerifyTokenRule(options.lenience, proposal, rows, round_start, noise);
}

absl::StatusOr<Verdict> Verify(const VerifyOptions& options, std::span<const ProposalNode> proposal,
                               RowSource rows, uint64_t round_start, const RandomKey& key) {
  PhiloxNoise noise(key, round_start);
  return Verify(options, proposal, rows, round_start, noise);
}

TokenId DraftSample(const Distribution& q, uint64_t position, Noise& noise) {
  if (q.form == Distribution::Form::kPointMass) return q.ids[0];
  return noise.Decide(Purpose::kDraft, position, 0, [&](double u) { return Sample(q, u); });
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

}  // namespace outrider
