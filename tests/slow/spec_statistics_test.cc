// The law of tests/unit/spec_exactness_test.cc, sampled: with real vocabularies, the real generator, the
// sampling controls, and rounds as the services run them. Seeds are fixed, so a result is reproducible.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "common/spec/controls.h"
#include "common/spec/residual.h"
#include "common/spec/verify.h"
#include "tests/slow/spec_chi_square.h"

namespace outrider {
namespace {

using Tokens = std::vector<TokenId>;

constexpr double kNotByChance = 1e-3;
constexpr double kCertainlyWrong = 1e-12;
const Tokens kPrompt = {3, 1, 4, 1, 5};

// Logits that depend on the last two tokens, and their distributions under some controls.
class Model {
 public:
  Model(int vocab, uint64_t seed, SamplingParams params, double disagreement = 0)
      : vocab_(vocab),
        seed_(seed),
        disagreement_(disagreement),
        controls_(*Controls::Create(std::move(params), kPrompt.size(), vocab)) {}

  // The row after a context. Cached per context, since it is a pure function of it.
  WeightRow Row(const Tokens& context) {
    const auto [it, fresh] = rows_.try_emplace(context);
    Shaped& shaped = it->second;
    if (fresh) {
      shaped.values = Logits(context);
      shaped.row = *controls_.Apply(context, shaped.values);
    }
    return shaped.row;
  }

 private:
  struct Shaped {
    std::vector<float> values;
    WeightRow row;
  };

  std::vector<float> Logits(const Tokens& context) const {
    const auto state = [&](uint64_t salt) {
      return seed_ * 1000003 + salt * 7919 + context[context.size() - 1] * 65537 +
             context[context.size() - 2];
    };
    std::mt19937_64 random(state(0)), other(state(1));
    std::normal_distribution<float> normal(0, 2);
    std::vector<float> logits(vocab_);
    for (float& l : logits) l = normal(random);
    normal.reset();
    for (float& l : logits) l += static_cast<float>(disagreement_) * normal(other);
    return logits;
  }

  int vocab_;
  uint64_t seed_;
  double disagreement_;
  Controls controls_;
  std::map<Tokens, Shaped> rows_;
};

struct Setting {
  int vocab = 16;
  int k = 3;
  Rule rule = Rule::kToken;
  SamplingParams target = {}, draft = {};
  int top_n = 64;  // of q on the wire
  double disagreement = 0.5;
  int samples = 200000;
  int emitted = 2;  // tokens whose joint law is tested
  // The mistakes of the negative controls.
  bool sampled_from_another_q = false;
  bool residual_skipped = false;
  bool same_noise_everywhere = false;
};

struct Outcome {
  std::map<Tokens, int> counts;  // of the first `emitted` tokens
  double accepted = 0, expected_accepted = 0, variance = 0, surprisal = 0, entropy = 0;
  double emitted = 0;
};

absl::StatusOr<Verdict> VerifyWithoutResidual(std::span<const ProposalNode> draft, RowSource rows, uint64_t n,
                                              const RandomKey& key) {
  Verdict verdict;
  for (size_t i = 0;; ++i) {
    const WeightRow p = *rows(static_cast<int>(i));
    if (i < draft.size() &&
        Uniform(key, n + i, Purpose::kAccept, 0, n) * draft[i].q(draft[i].token) < p(draft[i].token)) {
      continue;
    }
    verdict.path = ChainPath(i);
    verdict.token = Sample(p, Uniform(key, n + i, Purpose::kBonus, 0, n));
    return verdict;
  }
}

// Generates round by round until there are enough tokens.
Outcome Generate(const Setting& setting) {
  Model target(setting.vocab, 1, setting.target);
  Model draft(setting.vocab, 1, setting.draft, setting.disagreement);
  Outcome outcome;
  for (int sample = 0; sample < setting.samples; ++sample) {
    const RandomKey key{.seed = 20240607, .sample_index = static_cast<uint64_t>(sample)};
    Tokens context = kPrompt;
    while (context.size() < kPrompt.size() + setting.emitted) {
      const uint64_t n = context.size();
      Tokens seen = context;
      Proposal drafted;
      for (int i = 0; i < setting.k; ++i) {
        const WeightRow row = draft.Row(seen);
        TokenId token;
        Distribution q;
        if (setting.rule == Rule::kCoupled) {
          token = Race(row, key, setting.same_noise_everywhere ? 0 : n + i);
        } else {
          q = TruncateTopN(row, setting.top_n);
          const double u = Uniform(key, n + i, Purpose::kDraft, 0, n);
          token = setting.sampled_from_another_q ? Sample(q, u * u) : DraftSample(q, key, n + i, n);
        }
        seen.push_back(token);
        AppendToChain(token, std::move(q), drafted);
      }
      const auto rows = [&](int i) -> absl::StatusOr<WeightRow> {
        return target.Row(Tokens(seen.begin(), seen.begin() + n + i));
      };
      const absl::StatusOr<Verdict> verdict =
          setting.residual_skipped        ? VerifyWithoutResidual(drafted, rows, n, key)
          : setting.same_noise_everywhere ? Verify({.rule = setting.rule}, drafted, rows, 0, key)
                                          : Verify({.rule = setting.rule}, drafted, rows, n, key);
      context.assign(seen.begin(), seen.begin() + n + verdict->path.size());
      context.push_back(verdict->token);
      outcome.accepted += verdict->path.size();
      outcome.emitted += verdict->path.size() + 1;
      outcome.expected_accepted += verdict->expected_accepted;
      outcome.variance += verdict->expected_variance;
      outcome.surprisal += verdict->surprisal;
      outcome.entropy += verdict->entropy;
    }
    ++outcome.counts[Tokens(context.begin() + kPrompt.size(),
                            context.begin() + kPrompt.size() + setting.emitted)];
  }
  return outcome;
}

std::map<Tokens, double> TargetLaw(const Setting& setting) {
  Model target(setting.vocab, 1, setting.target);
  std::map<Tokens, double> law = {{{}, 1.0}};
  for (int i = 0; i < setting.emitted; ++i) {
    std::map<Tokens, double> longer;
    for (const auto& [tokens, probability] : law) {
      Tokens context = kPrompt;
      context.insert(context.end(), tokens.begin(), tokens.end());
      const WeightRow row = target.Row(context);
      for (TokenId x = 0; x < setting.vocab; ++x) {
        if (row(x) == 0) continue;
        Tokens next = tokens;
        next.push_back(x);
        longer[next] = probability * row(x);
      }
    }
    law = std::move(longer);
  }
  return law;
}

double PValue(const Setting& setting) { return ChiSquareP(Generate(setting).counts, TargetLaw(setting)); }

Setting Small(Rule rule, int k) { return {.k = k, .rule = rule}; }

Setting Large(Rule rule, int k) {
  Setting setting{.vocab = 4096, .k = k, .rule = rule, .samples = 50000, .emitted = 3};
  setting.target.top_k = setting.draft.top_k = 8;
  return setting;
}

// Controls that depend on the context, so that each position has its own.
SamplingParams ManyControls() {
  SamplingParams params;
  params.temperature = 0.8;
  params.top_k = 12;
  params.top_p = 0.95;
  params.min_p = 0.01;
  params.repetition_penalty = 1.3;
  params.presence_penalty = 0.4;
  params.frequency_penalty = 0.3;
  params.logit_bias = {{2, 1.5f}, {7, -1.0f}};
  params.bad_ids = {9};
  params.min_tokens = 1;
  params.eos_ids = {2};
  return params;
}

TEST(ChiSquare, TailAgreesWithTables) {
  EXPECT_NEAR(ChiSquareTail(3.841459, 1), 0.05, 1e-6);
  EXPECT_NEAR(ChiSquareTail(18.307038, 10), 0.05, 1e-6);
  EXPECT_NEAR(ChiSquareTail(149.449253, 100), 0.001, 1e-6);
  EXPECT_NEAR(ChiSquareTail(99.334, 100), 0.5, 1e-4);
}

TEST(Statistics, VocabularyOf16UnderEveryRule) {
  for (Rule rule : {Rule::kToken, Rule::kBlock, Rule::kCoupled}) {
    for (int k : {0, 1, 3}) {
      EXPECT_GT(PValue(Small(rule, k)), kNotByChance) << "rule " << static_cast<int>(rule) << ", k = " << k;
    }
  }
}

TEST(Statistics, VocabularyOf4096WithTopK8UnderEveryRule) {
  for (Rule rule : {Rule::kToken, Rule::kBlock, Rule::kCoupled}) {
    EXPECT_GT(PValue(Large(rule, 4)), kNotByChance) << "rule " << static_cast<int>(rule);
  }
}

TEST(Statistics, ManyControlsTogether) {
  for (Rule rule : {Rule::kToken, Rule::kBlock, Rule::kCoupled}) {
    Setting setting = Small(rule, 3);
    setting.emitted = 3;
    setting.target = setting.draft = ManyControls();
    EXPECT_GT(PValue(setting), kNotByChance) << "rule " << static_cast<int>(rule);
  }
}

TEST(Statistics, TheDraftMayHaveItsOwnControlsAndATruncatedQ) {
  for (Rule rule : {Rule::kToken, Rule::kBlock, Rule::kCoupled}) {
    Setting setting = Small(rule, 3);
    setting.target = ManyControls();
    setting.draft.temperature = 1.7;
    setting.top_n = 3;
    EXPECT_GT(PValue(setting), kNotByChance) << "rule " << static_cast<int>(rule);
  }
}

TEST(Statistics, CanariesStayAtOne) {
  for (Rule rule : {Rule::kToken, Rule::kBlock, Rule::kCoupled}) {
    Setting setting = Small(rule, 3);
    setting.emitted = 6;
    setting.samples = 50000;
    const Outcome outcome = Generate(setting);
    if (rule == Rule::kToken) {
      EXPECT_LT(std::abs(outcome.accepted - outcome.expected_accepted), 4 * std::sqrt(outcome.variance));
    }
    EXPECT_NEAR(outcome.surprisal / outcome.entropy, 1, 0.005) << "rule " << static_cast<int>(rule);
  }
}

TEST(Statistics, BlockRuleAcceptsMoreThanTokenRule) {
  Setting setting = Small(Rule::kToken, 4);
  setting.emitted = 8;
  setting.samples = 20000;
  const double rounds_of_token = Generate(setting).emitted;
  const Outcome token = Generate(setting);
  setting.rule = Rule::kBlock;
  const Outcome block = Generate(setting);
  const auto mean = [](const Outcome& outcome) {
    return outcome.accepted / (outcome.emitted - outcome.accepted);  // accepted per round
  };
  EXPECT_EQ(token.emitted, rounds_of_token) << "the same seeds give the same text";
  EXPECT_GT(mean(block), mean(token) * 1.01);
}

TEST(NegativeControl, AQThatWasNotSampledFromIsNoticed) {
  for (Rule rule : {Rule::kToken, Rule::kBlock}) {
    Setting setting = Small(rule, 3);
    setting.sampled_from_another_q = true;
    EXPECT_LT(PValue(setting), kCertainlyWrong) << "rule " << static_cast<int>(rule);
  }
}

TEST(NegativeControl, AQThatWasNotSampledFromMovesTheAcceptanceCanary) {
  Setting setting = Small(Rule::kToken, 3);
  setting.sampled_from_another_q = true;
  setting.samples = 50000;
  const Outcome outcome = Generate(setting);
  EXPECT_GT(std::abs(outcome.accepted - outcome.expected_accepted), 10 * std::sqrt(outcome.variance));
}

TEST(NegativeControl, ResidualSkippedIsNoticed) {
  for (Setting setting : {Small(Rule::kToken, 3), Large(Rule::kToken, 4)}) {
    setting.residual_skipped = true;
    EXPECT_LT(PValue(setting), kCertainlyWrong);
  }
}

TEST(NegativeControl, NoiseThatForgetsThePositionIsNoticed) {
  Setting setting = Small(Rule::kCoupled, 1);
  setting.same_noise_everywhere = true;
  EXPECT_LT(PValue(setting), kCertainlyWrong);
}

}  // namespace
}  // namespace outrider
