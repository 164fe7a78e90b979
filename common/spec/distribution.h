// Distributions: a row after the controls, the q of a drafted token as it crosses the wire, and the
// log-probabilities of a response. Pure functions, any thread.
#pragma once

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/spec/team/row_verify.h"
#include "common/spec/types.h"
#include "common/spec/weights.h"

namespace outrider {

// A row of the target or draft after the sampling controls: p(x) = weights[x] / total over the vocabulary.
// With temperature 0 all mass is on one token: then point_mass >= 0, `weights` is empty and `logits` is the
// row after the penalties and masks (-infinity where removed). The spans refer to the caller's row.
struct WeightRow {
  std::span<const float> weights = {};  // [vocab], >= 0
  double total = 1;                     // SumWeights(weights), > 0
  TokenId point_mass = -1;
  std::span<const float> logits = {};  // [vocab], only with point_mass

  size_t vocab() const { return point_mass >= 0 ? logits.size() : weights.size(); }
  // Probability of a token in [0, vocab).
  double operator()(TokenId token) const {
    if (point_mass >= 0) return token == point_mass ? 1.0 : 0.0;
    return weights[token] * (1.0 / total);
  }
};

// The distribution q of a drafted token. The weights are the serialised ones: the draft samples from exactly
// the values it sends, so q is known without error on the other side. Copyable; not synchronised.
struct Distribution {
  enum class Form {
    kAbsent,     // coupled rule: no q is needed
    kPointMass,  // all mass on ids[0]: greedy, n-gram and copy drafters; ids may be left empty on the wire,
                 // which means the drafted token
    kSparse,     // weights[i] belongs to ids[i]; ids strictly ascending
    kDense,      // weights[x] belongs to token x; on the wire, further tokens have weight 0
  };
  Form form = Form::kAbsent;
  std::vector<TokenId> ids = {};
  std::vector<float> weights = {};
  // SumWeights(weights) for kSparse and kDense, else 1. Not on the wire: Prepare() sets it.
  double total = 0;

  // Probability of a token in [0, vocab); 0 for kAbsent. Needs Prepare().
  double operator()(TokenId token) const;
};

// The entries of a point mass or of a sparse distribution, which must outlive them. Needs Prepare().
team::SparseQ EntriesOf(const Distribution& q);

// INVALID_ARGUMENT, reason Q_MISSING: a rule that compares p with q got no q.
absl::Status QMissingError();

// Checks the q that arrived for `drafted`, sets `total`, and extends a dense q to `vocab` weights.
// INVALID_ARGUMENT with one of the reasons DRAFT_TOKEN_OUT_OF_RANGE, Q_MISSING (kAbsent, unless
// allow_absent), Q_SIZE_MISMATCH, Q_ID_OUT_OF_RANGE, Q_IDS_NOT_ASCENDING (covers duplicates), Q_NOT_FINITE
// (NaN or infinity), Q_NEGATIVE, Q_SUM_NOT_POSITIVE, Q_ZERO_FOR_DRAFTED_TOKEN.
absl::Status Prepare(Distribution& q, TokenId drafted, int vocab, bool allow_absent = false);

// Returns the n heaviest tokens of a row (ties at the cut go to the lowest ids) as a sparse distribution,
// prepared. A draft samples from it and serialises it. n <= 0 or n >= vocab gives the dense form; a point
// mass stays one. Tokens of weight zero are left out. One pass over the row and no sort.
Distribution TruncateTopN(const WeightRow& row, int n);

// Draws a token by inverse CDF over ids in ascending order, u in [0, 1). Never draws a token of weight zero.
TokenId Sample(const Distribution& q, double u);
TokenId Sample(const WeightRow& p, double u);

// sum over x of min(scale * p(x), q(x)). With scale 1 it is the probability that the token rule accepts a
// token drawn from q (Leviathan et al. 2211.17192, Theorem 3.5).
double Overlap(const WeightRow& p, const Distribution& q, double scale = 1);

// Entropy of a row in nats.
double Entropy(const WeightRow& row);

// The most alternatives that a request can ask for at a position.
inline constexpr int kMaxTopLogProbabilities = 20;

// An emitted token, an alternative or a prompt token, with the natural logarithm of its probability.
struct TokenLogProbability {
  TokenId token = 0;
  double log_probability = 0;
};

// The most probable tokens after a text, best first, ties to the lowest id.
using CandidateRow = std::vector<TokenLogProbability>;

// One position of a text: its token, and the most probable tokens there.
struct PositionLogProbabilities {
  TokenLogProbability token;
  std::vector<TokenLogProbability> top;
};

// The n most probable tokens, best first, ties to the lowest id; fewer if fewer have a positive probability.
// From a row after the controls:
std::vector<TokenLogProbability> TopLogProbabilities(const WeightRow& row, int n);
// From finite logits before the controls, at temperature 1:
std::vector<TokenLogProbability> TopLogProbabilities(std::span<const float> logits, int n);

// Log of the sum of exp(logits): logits[x] - LogSumExp(logits) is the log-probability of x before the
// controls. Finite logits; relative accuracy of the sum about 1e-7.
double LogSumExp(std::span<const float> logits);

}  // namespace outrider
