#include "common/spec/distribution.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "common/spec/check.h"
#include "common/spec/selection.h"
#include "common/spec/status.h"
#include "common/spec/team/team_of_one.h"

namespace outrider {
namespace {

template <class... Args>
absl::Status Bad(absl::string_view reason, const Args&... detail) {
  return InvalidFor(absl::AsciiStrToUpper(reason), reason, ": ", detail...);
}

absl::Status CheckIds(const Distribution& q, int vocab) {
  for (size_t i = 0; i < q.ids.size(); ++i) {
    if (q.ids[i] < 0 || q.ids[i] >= vocab) {
      return Bad("q_id_out_of_range", "id ", q.ids[i], " is not in [0, ", vocab, ")");
    }
    if (i > 0 && q.ids[i] <= q.ids[i - 1]) {
      return Bad("q_ids_not_ascending", "id ", q.ids[i], " follows ", q.ids[i - 1]);
    }
  }
  return absl::OkStatus();
}

// Sets `total`. The sum is NaN or infinite if a weight is; a negative weight needs its own test.
absl::Status CheckWeights(Distribution& q) {
  q.total = SumWeights(q.weights);
  bool negative = false;
  for (float w : q.weights) negative |= w < 0;
  if (!std::isfinite(q.total)) return Bad("q_not_finite", "a weight is NaN or infinite");
  if (negative) return Bad("q_negative", "a weight is negative");
  if (!(q.total > 0)) return Bad("q_sum_not_positive", "the weights sum to ", q.total);
  return absl::OkStatus();
}

}  // namespace

absl::Status QMissingError() {
  return Bad("q_missing", "the rule needs the distribution of each drafted token");
}

double Distribution::operator()(TokenId token) const {
  if (form == Form::kAbsent) return 0;
  return form == Form::kDense ? weights[token] * (1.0 / total) : EntriesOf(*this)(token);
}

team::SparseQ EntriesOf(const Distribution& q) {
  const bool sparse = q.form == Distribution::Form::kSparse;
  return {q.ids.data(), sparse ? q.weights.data() : nullptr, static_cast<int>(q.ids.size()),
          sparse ? 1.0 / q.total : 1.0};
}

absl::Status Prepare(Distribution& q, TokenId drafted, int vocab, bool allow_absent) {
  if (drafted < 0 || drafted >= vocab) {
    return Bad("draft_token_out_of_range", "token ", drafted, " is not in [0, ", vocab, ")");
  }
  q.total = 1;
  switch (q.form) {
    case Distribution::Form::kAbsent:
      if (!allow_absent) return QMissingError();
      return absl::OkStatus();
    case Distribution::Form::kPointMass:
      if (q.ids.empty()) q.ids.push_back(drafted);
      if (q.ids.size() != 1 || !q.weights.empty()) return Bad("q_size_mismatch", "a point mass has one id");
      break;
    case Distribution::Form::kSparse:
      if (q.ids.size() != q.weights.size()) {
        return Bad("q_size_mismatch", q.ids.size(), " ids but ", q.weights.size(), " weights");
      }
      break;
    case Distribution::Form::kDense:
      if (!q.ids.empty() || q.weights.size() > static_cast<size_t>(vocab)) {
        return Bad("q_size_mismatch", q.weights.size(), " weights for a vocabulary of ", vocab);
      }
      break;
  }
  OUTRIDER_TRY(CheckIds(q, vocab));
  if (q.form != Distribution::Form::kPointMass) OUTRIDER_TRY(CheckWeights(q));
  if (q.form == Distribution::Form::kDense) q.weights.resize(static_cast<size_t>(vocab));
  if (!(q(drafted) > 0))
    return Bad("q_zero_for_drafted_token", "token ", drafted, " cannot come from this q");
  return absl::OkStatus();
}

Distribution TruncateTopN(const WeightRow& row, int n) {
  Distribution q;
  if (row.point_mass >= 0) {
    q.form = Distribution::Form::kPointMass;
    q.ids = {row.point_mass};
    q.total = 1;
    return q;
  }
  if (n <= 0 || static_cast<size_t>(n) >= row.weights.size()) {
    q.form = Distribution::Form::kDense;
    q.weights.assign(row.weights.begin(), row.weights.end());
    q.total = row.total;
    return q;
  }
  q.form = Distribution::Form::kSparse;
  constexpr float kLeastPositive = std::numeric_limits<float>::denorm_min();
  SelectLargest(row.weights, static_cast<size_t>(n), kLeastPositive, q.ids, q.weights);
  q.total = SumWeights(q.weights);
  return q;
}

TokenId Sample(const Distribution& q, double u) {
  OUTRIDER_CHECK(q.form != Distribution::Form::kAbsent);
  if (q.form == Distribution::Form::kPointMass) return q.ids[0];
  const size_t index = SampleIndex(q.weights, q.total, u);
  return q.form == Distribution::Form::kSparse ? q.ids[index] : static_cast<TokenId>(index);
}

TokenId Sample(const WeightRow& p, double u) {
  if (p.point_mass >= 0) return p.point_mass;
  return static_cast<TokenId>(SampleIndex(p.weights, p.total, u));
}

double Overlap(const WeightRow& p, const Distribution& q, double scale) {
  if (q.form == Distribution::Form::kAbsent) return 0;
  if (q.form != Distribution::Form::kDense) {
    team::TeamOfOne team;
    const auto scaled = [&](TokenId token) { return scale * p(token); };
    return team::Overlap(team, scaled, EntriesOf(q));
  }
  if (p.point_mass >= 0) return std::min(scale, q(p.point_mass));
  return OverlapMass(p.weights, scale * (1.0 / p.total), q.weights, 1.0 / q.total);
}

double Entropy(const WeightRow& row) { return row.point_mass >= 0 ? 0 : Entropy(row.weights, row.total); }

std::vector<TokenLogProbability> TopLogProbabilities(const WeightRow& row, int n) {
  std::vector<TokenLogProbability> top;
  if (row.point_mass >= 0) {
    if (n > 0) top.push_back({row.point_mass, 0});
    return top;
  }
  for (const WeightedToken& token : LargestOf(row.weights, n)) {
    if (token.value > 0) top.push_back({token.id, std::log(row(token.id))});
  }
  return top;
}

std::vector<TokenLogProbability> TopLogProbabilities(std::span<const float> logits, int n) {
  const double log_sum = LogSumExp(logits);
  std::vector<TokenLogProbability> top;
  for (const WeightedToken& token : LargestOf(logits, n)) top.push_back({token.id, token.value - log_sum});
  return top;
}

double LogSumExp(std::span<const float> logits) {
  const float max = FindMax(logits).value;
  float weights[kWeightBlock];
  double sum = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kWeightBlock) {
    const size_t size = std::min(kWeightBlock, logits.size() - begin);
    std::copy_n(logits.data() + begin, size, weights);
    ExpInPlace({weights, size}, max, 1);
    sum += SumWeights({weights, size});
  }
  return max + std::log(sum);
}

}  // namespace outrider
