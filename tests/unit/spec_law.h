// Language models over three tokens, and how far the law of a text is from the target's: for proofs by exact
// enumeration (spec_enumeration.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "common/spec/weights.h"
#include "tests/unit/some_of.h"
#include "tests/unit/spec_enumeration.h"

namespace outrider {

inline constexpr int kVocab = 3;
// Bounds for the deviations of laws: what rounding explains, and what every mistake exceeds.
inline constexpr double kExact = 1e-12;
inline constexpr double kNoticed = 1e-3;
using Tokens = std::vector<TokenId>;

// A language model whose next token depends on the last two.
class Model {
 public:
  enum class Kind { kAnything, kWithZeros, kOneHot, kEvenTokens, kOddTokens };

  Model(Kind kind, std::mt19937& random) {
    for (auto& weights : rows_) {
      do {
        for (int x = 0; x < kVocab; ++x) {
          weights[x] = std::exp(std::normal_distribution<float>(0, 1.5f)(random));
          if (kind == Kind::kWithZeros && random() % 3 == 0) weights[x] = 0;
          if (kind == Kind::kEvenTokens && x % 2 == 1) weights[x] = 0;
          if (kind == Kind::kOddTokens && x % 2 == 0) weights[x] = 0;
        }
        if (kind == Kind::kOneHot) {
          weights.assign(kVocab, 0);
          weights[random() % kVocab] = 1;
        }
      } while (SumWeights(weights) == 0);
    }
  }
  WeightRow Row(const Tokens& context) const {
    const std::vector<float>& weights = rows_[StateOf(context)];
    return {.weights = weights, .total = SumWeights(weights)};
  }
  // The part of a context that the model depends on.
  static int StateOf(const Tokens& context) {
    const size_t n = context.size();
    return (n > 0 ? context[n - 1] : 0) + kVocab * (n > 1 ? context[n - 2] : 0);
  }

 private:
  std::vector<std::vector<float>> rows_{kVocab * kVocab, std::vector<float>(kVocab)};
};

struct Pair {
  Model target, draft;
};

// Pairs with all special cases of distributions, and `ordinary` random ones.
inline std::vector<Pair> AllPairs(int ordinary) {
  std::mt19937 random(17);
  using Kind = Model::Kind;
  std::vector<Pair> pairs;
  for (const auto& [target, draft] : {std::pair{Kind::kWithZeros, Kind::kWithZeros},
                                      {Kind::kWithZeros, Kind::kAnything},
                                      {Kind::kAnything, Kind::kOneHot},
                                      {Kind::kOneHot, Kind::kAnything},
                                      {Kind::kOneHot, Kind::kOneHot},
                                      {Kind::kEvenTokens, Kind::kOddTokens},
                                      {Kind::kOddTokens, Kind::kAnything}}) {
    pairs.push_back({Model(target, random), Model(draft, random)});
  }
  const Model same(Kind::kWithZeros, random);
  pairs.push_back({same, same});
  for (int i = 0; i < ordinary; ++i) {
    pairs.push_back({Model(Kind::kAnything, random), Model(Kind::kAnything, random)});
  }
  return pairs;
}

// All of these, or the first of them under a sanitizer, whose zeros leave few paths to follow.
inline std::vector<Pair> Pairs(int ordinary) {
  std::vector<Pair> pairs = AllPairs(ordinary);
  pairs.erase(pairs.begin() + SomeOf(static_cast<int>(pairs.size())), pairs.end());
  return pairs;
}

inline Tokens Join(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The probability of `tokens` after `context` under the target alone.
inline double TargetLaw(const Model& target, Tokens context, const Tokens& tokens) {
  double probability = 1;
  for (TokenId token : tokens) {
    probability *= target.Row(context)(token);
    context.push_back(token);
  }
  return probability;
}

// All sequences of this length.
inline std::vector<Tokens> Sequences(int length) {
  std::vector<Tokens> all = {{}};
  for (int i = 0; i < length; ++i) {
    std::vector<Tokens> longer;
    for (const Tokens& tokens : all) {
      for (TokenId x = 0; x < kVocab; ++x) longer.push_back(Join(tokens, {x}));
    }
    all = std::move(longer);
  }
  return all;
}

using Law = std::map<Tokens, double>;

// The largest deviation of the first `length` tokens from the target's law. Where fewer tokens were emitted,
// the target continues.
inline double Deviation(const Law& emitted, const Model& target, int length) {
  std::map<Tokens, double> begun;
  double total = 0;
  for (const auto& [tokens, probability] : emitted) {
    begun[Tokens(tokens.begin(), tokens.begin() + std::min<size_t>(tokens.size(), length))] += probability;
    total += probability;
  }
  double worst = std::abs(total - 1);
  for (const Tokens& tokens : Sequences(length)) {
    double probability = 0;
    for (int n = 0; n <= length; ++n) {
      const Tokens prefix(tokens.begin(), tokens.begin() + n);
      const auto it = begun.find(prefix);
      if (it == begun.end()) continue;
      probability += it->second * TargetLaw(target, prefix, {tokens.begin() + n, tokens.end()});
    }
    worst = std::max(worst, std::abs(probability - TargetLaw(target, {}, tokens)));
  }
  return worst;
}

// The deviation of text() with all of its noise integrated jointly, which is needed where rounds share noise.
inline double JointDeviation(const std::function<Tokens(Enumerator&)>& text, const Model& target, int length,
                             bool* reused = nullptr,
                             Enumerator::Keying keying = Enumerator::Keying::kProduction) {
  Enumerator noise(keying);
  Law law;
  noise.ForEachPath([&] {
    const Tokens tokens = text(noise);
    law[tokens] += noise.probability();
  });
  if (reused) *reused = noise.reused();
  return Deviation(law, target, length);
}

// Runs one round after a context and returns the emitted tokens.
using Round = std::function<Tokens(const Pair&, const Tokens& context, Enumerator&)>;

inline Law LawOfARound(const Round& round, const Pair& pair, const Tokens& context) {
  Enumerator noise;
  Law law;
  noise.ForEachPath([&] {
    const Tokens emitted = round(pair, context, noise);
    law[emitted] += noise.probability();
  });
  EXPECT_FALSE(noise.reused()) << "no counter may be used twice in a round";
  return law;
}

// The law of several rounds of one sequence, for rules whose rounds share no noise. The counter contains the
// round's start, which grows, so rounds are independent given the context. A round depends on the context
// only through the models' state.
inline Law LawOfRounds(const Round& round, const Pair& pair, int rounds, size_t length) {
  std::map<int, Law> after;  // by the models' state
  Law law = {{{}, 1.0}};
  for (int r = 0; r < rounds; ++r) {
    Law next;
    for (const auto& [context, probability] : law) {
      if (context.size() >= length) {
        next[context] += probability;
        continue;
      }
      const int state = Model::StateOf(context);
      if (!after.contains(state)) after[state] = LawOfARound(round, pair, {state / kVocab, state % kVocab});
      for (const auto& [emitted, p] : after[state]) {
        Tokens longer = Join(context, emitted);
        if (longer.size() > length) longer.resize(length);
        next[longer] += probability * p;
      }
    }
    law = std::move(next);
  }
  return law;
}

inline double DeviationOverRounds(const Round& round, const Pair& pair, int rounds = 4, int length = 7) {
  return Deviation(LawOfRounds(round, pair, rounds, static_cast<size_t>(length)), pair.target, length);
}

// The same for rounds that go on until there are `length` tokens.
inline double JointDeviation(const Round& round, const Pair& pair, int length, bool* reused = nullptr,
                             Enumerator::Keying keying = Enumerator::Keying::kProduction) {
  const auto text = [&](Enumerator& noise) {
    Tokens tokens;
    while (static_cast<int>(tokens.size()) < length) tokens = Join(tokens, round(pair, tokens, noise));
    return tokens;
  };
  return JointDeviation(text, pair.target, length, reused, keying);
}

}  // namespace outrider
