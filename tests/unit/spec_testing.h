// Helpers for tests of common/spec.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <initializer_list>
#include <utility>
#include <vector>

#include "common/spec/distribution.h"
#include "common/spec/verify.h"

namespace outrider {

// A row that owns its weights.
class TestRow {
 public:
  TestRow(std::initializer_list<float> weights) : TestRow(std::vector<float>(weights)) {}
  explicit TestRow(std::vector<float> weights) : weights_(std::move(weights)) {}
  WeightRow row() const { return {.weights = weights_, .total = SumWeights(weights_)}; }
  operator WeightRow() const { return row(); }

 private:
  std::vector<float> weights_;
};

// Temperature 0: one-hot at the largest logit; ties go to the lowest id.
inline WeightRow Greedy(const std::vector<float>& logits) {
  return {.point_mass = FindMax(logits).index, .logits = logits};
}

inline Distribution Dense(std::vector<float> weights) {
  Distribution q;
  q.form = Distribution::Form::kDense;
  q.weights = std::move(weights);
  q.total = SumWeights(q.weights);
  return q;
}

inline Distribution Sparse(std::vector<TokenId> ids, std::vector<float> weights) {
  Distribution q;
  q.form = Distribution::Form::kSparse;
  q.ids = std::move(ids);
  q.weights = std::move(weights);
  q.total = SumWeights(q.weights);
  return q;
}

inline Distribution PointMass(TokenId token) {
  Distribution q;
  q.form = Distribution::Form::kPointMass;
  q.ids = {token};
  q.total = 1;
  return q;
}

// A chain of tokens, each with the distribution it was drawn from.
inline Proposal Chain(std::initializer_list<std::pair<TokenId, Distribution>> tokens) {
  Proposal chain;
  for (const auto& [token, q] : tokens) AppendToChain(token, q, chain);
  return chain;
}

// The number of accepted tokens.
inline int Accepted(const Verdict& verdict) { return static_cast<int>(verdict.path.size()); }

// Noise from a list of uniform numbers; records what each was used for.
class ScriptedNoise final : public Noise {
 public:
  struct Question {
    Purpose purpose;
    uint64_t position;
    friend bool operator==(const Question&, const Question&) = default;
  };
  explicit ScriptedNoise(std::initializer_list<double> uniforms) : uniforms_(uniforms) {}

  int Decide(Purpose purpose, uint64_t position, uint64_t, absl::FunctionRef<int(double)> step) override {
    asked.push_back({purpose, position});
    if (uniforms_.empty()) {
      ADD_FAILURE() << "more random numbers were asked for than the test expects";
      return step(0);
    }
    const double u = uniforms_.front();
    uniforms_.pop_front();
    return step(u);
  }
  TokenId Race(uint64_t position, const WeightRow& row) override {
    return outrider::Race(row, RandomKey{}, position);
  }

  std::vector<Question> asked;

 private:
  std::deque<double> uniforms_;
};

}  // namespace outrider
