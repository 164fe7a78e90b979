// Sampling controls and verification rules written directly from the papers: double precision, whole
// distributions, plain loops. Shares only types and random numbers with common/spec, so two implementations
// that agree on 10^5 random cases hardly share a mistake.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "common/spec/controls.h"
#include "common/spec/random.h"
#include "common/spec/verify.h"

namespace outrider::textbook {

// The relative margin of the closest comparison on the way to a result. An implementation with a smaller
// relative error must come to the same result.
class Margin {
 public:
  void Compare(double a, double b) {
    const double size = std::max({std::abs(a), std::abs(b), 1e-300});
    smallest_ = std::min(smallest_, std::abs(a - b) / size);
  }
  // Both sides are logarithms.
  void CompareLogs(double a, double b) { smallest_ = std::min(smallest_, std::abs(a - b)); }
  double smallest() const { return smallest_; }

 private:
  double smallest_ = std::numeric_limits<double>::infinity();
};

using Probabilities = std::vector<double>;

inline void Normalise(Probabilities& p) {
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= total;
}

// Ids by descending value; ties go to the lowest id.
inline std::vector<TokenId> Ranked(const std::vector<double>& values) {
  std::vector<TokenId> ids(values.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) { return values[a] > values[b]; });
  return ids;
}

inline Probabilities Shape(const SamplingParams& params, size_t prompt_length,
                           std::span<const TokenId> context, std::span<const float> logits, Margin& margin) {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  const size_t vocab = logits.size();
  std::vector<double> z(logits.begin(), logits.end());
  for (const auto& [id, bias] : params.logit_bias) z[id] += bias;
  for (TokenId id = 0; id < static_cast<TokenId>(vocab); ++id) {
    const auto seen = std::count(context.begin(), context.end(), id);
    const auto output = seen - std::count(context.begin(), context.begin() + prompt_length, id);
    if (seen > 0) z[id] = z[id] < 0 ? z[id] * params.repetition_penalty : z[id] / params.repetition_penalty;
    if (output > 0) z[id] -= params.presence_penalty + params.frequency_penalty * static_cast<double>(output);
  }
  const auto among = [](const std::vector<TokenId>& ids, TokenId id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  const bool early = context.size() < prompt_length + params.min_tokens;
  for (TokenId id = 0; id < static_cast<TokenId>(vocab); ++id) {
    const bool allowed = params.allowed_ids.empty() || among(params.allowed_ids, id);
    if (!allowed || among(params.bad_ids, id) || (early && among(params.eos_ids, id))) z[id] = kNever;
  }

  std::vector<TokenId> ranked = Ranked(z);
  if (params.temperature == 0) {
    margin.CompareLogs(z[ranked[0]], z[ranked[1]]);
    Probabilities one_hot(vocab, 0);
    one_hot[ranked[0]] = 1;
    return one_hot;
  }
  Probabilities p(vocab);
  for (size_t id = 0; id < vocab; ++id) p[id] = std::exp((z[id] - z[ranked[0]]) / params.temperature);
  if (params.top_k > 0 && params.top_k < static_cast<int>(vocab)) {
    const double last = z[ranked[params.top_k - 1]];
    if (last != kNever)
      margin.CompareLogs(last / params.temperature, z[ranked[params.top_k]] / params.temperature);
    for (size_t i = params.top_k; i < vocab; ++i) p[ranked[i]] = 0;
  }
  Normalise(p);
  if (params.top_p < 1) {
    double mass = 0;
    for (TokenId id : ranked) {
      if (mass >= params.top_p) p[id] = 0;
      mass += p[id];
      if (p[id] > 0) margin.Compare(mass, params.top_p);
    }
    // Which of two equal tokens is the last one depends on their order.
    for (size_t i = 1; i < vocab; ++i) {
      if (p[ranked[i]] == 0 && p[ranked[i - 1]] > 0) margin.CompareLogs(z[ranked[i]], z[ranked[i - 1]]);
    }
  }
  if (params.min_p > 0) {
    const double bound = params.min_p * p[ranked[0]];
    for (double& x : p) {
      if (x > 0) margin.Compare(x, bound);
      if (x < bound) x = 0;
    }
  }
  Normalise(p);
  return p;
}

inline Probabilities FromWire(const Distribution& q, size_t vocab) {
  Probabilities p(vocab, 0);
  for (size_t i = 0; i < q.weights.size(); ++i) {
    p[q.form == Distribution::Form::kDense ? i : static_cast<size_t>(q.ids[i])] = q.weights[i];
  }
  if (q.form == Distribution::Form::kPointMass) p[q.ids[0]] = 1;
  Normalise(p);
  return p;
}

// By inverse CDF over ascending ids.
inline TokenId Draw(const Probabilities& p, double u, Margin& margin) {
  double below = 0;
  TokenId last = 0;
  for (size_t id = 0; id < p.size(); ++id) {
    if (p[id] == 0) continue;
    last = static_cast<TokenId>(id);
    if (below > 0) margin.CompareLogs(u, below);
    below += p[id];
    if (u < below) break;
  }
  if (below < 1 - 1e-9) margin.CompareLogs(u, below);
  return last;
}

struct Decision {
  int accepted = 0;
  TokenId token = 0;
};

// Leviathan et al. 2211.17192, Algorithm 1.
inline Decision TokenRule(const std::vector<Probabilities>& p, const std::vector<Probabilities>& q,
                          const std::vector<TokenId>& x, uint64_t n, const RandomKey& key, Margin& margin) {
  const size_t k = x.size();
  for (size_t i = 0; i < k; ++i) {
    const double u = Uniform(key, n + i, Purpose::kAccept, 0, n);
    const double left = u * q[i][x[i]], right = p[i][x[i]];
    margin.Compare(left, right);
    if (left < right) continue;
    Probabilities residual(p[i].size());
    for (size_t t = 0; t < residual.size(); ++t) residual[t] = std::max(p[i][t] - q[i][t], 0.0);
    Normalise(residual);
    return {static_cast<int>(i), Draw(residual, Uniform(key, n + i, Purpose::kResidual, 0, n), margin)};
  }
  return {static_cast<int>(k), Draw(p[k], Uniform(key, n + k, Purpose::kBonus, 0, n), margin)};
}

// Sun et al. 2403.10444, Algorithm 2.
inline Decision BlockRule(const std::vector<Probabilities>& p, const std::vector<Probabilities>& q,
                          const std::vector<TokenId>& x, uint64_t n, const RandomKey& key, Margin& margin) {
  const size_t k = x.size();
  std::vector<double> ratio(k + 1, 1);
  size_t stands = 0;
  for (size_t i = 1; i <= k; ++i) {
    ratio[i] = std::min(ratio[i - 1] * p[i - 1][x[i - 1]] / q[i - 1][x[i - 1]], 1.0);
    double h = ratio[i];
    if (i < k) {
      double surplus = 0;
      for (size_t t = 0; t < p[i].size(); ++t) surplus += std::max(ratio[i] * p[i][t] - q[i][t], 0.0);
      h = surplus + 1 - ratio[i] > 0 ? surplus / (surplus + 1 - ratio[i]) : 0;
    }
    const double u = Uniform(key, n + i - 1, Purpose::kAccept, 0, n);
    margin.Compare(u, h);
    if (u < h) stands = i;
  }
  if (stands == k)
    return {static_cast<int>(k), Draw(p[k], Uniform(key, n + k, Purpose::kBonus, 0, n), margin)};
  Probabilities residual(p[stands].size());
  for (size_t t = 0; t < residual.size(); ++t) {
    residual[t] = std::max(ratio[stands] * p[stands][t] - q[stands][t], 0.0);
  }
  Normalise(residual);
  return {static_cast<int>(stands),
          Draw(residual, Uniform(key, n + stands, Purpose::kResidual, 0, n), margin)};
}

// The exponential race that is equivalent to the coupled rule's Gumbel noise; Daliri et al. 2408.07978.
inline TokenId Race(const Probabilities& p, uint64_t position, const RandomKey& key, Margin& margin) {
  std::vector<double> minus_time(p.size(), -std::numeric_limits<double>::infinity());
  for (size_t t = 0; t < p.size(); ++t) {
    if (p[t] == 0) continue;
    const auto bits = RandomBits(key, {position, static_cast<uint64_t>(Purpose::kGumbel), t / 4, 0});
    minus_time[t] = std::log1p(-UnitInterval(bits[t % 4])) / p[t];
  }
  const std::vector<TokenId> ranked = Ranked(minus_time);
  if (std::isfinite(minus_time[ranked[1]])) margin.Compare(minus_time[ranked[0]], minus_time[ranked[1]]);
  return ranked[0];
}

inline Decision CoupledRule(const std::vector<Probabilities>& p, const std::vector<TokenId>& x, uint64_t n,
                            const RandomKey& key, Margin& margin) {
  for (size_t i = 0;; ++i) {
    const TokenId token = Race(p[i], n + i, key, margin);
    if (i == x.size() || token != x[i]) return {static_cast<int>(i), token};
  }
}

}  // namespace outrider::textbook
