#include <gtest/gtest.h>

#include "common/engine/cuda/decide_convert.h"

namespace outrider::cuda {
namespace {

constexpr int kVocab = 1000;
const DecoderConfig kWhole{.vocab_size = kVocab};

Distribution Sparse(int entries) {
  Distribution q{.form = Distribution::Form::kSparse, .ids = {}, .weights = {}, .total = 1};
  for (int i = 0; i < entries; ++i) q.ids.push_back(i);
  q.weights.assign(q.ids.size(), 1.0f / static_cast<float>(entries));
  return q;
}

Proposal Chain(int nodes, const Distribution& q) {
  Proposal chain;
  for (int i = 0; i < nodes; ++i) AppendToChain(i, q, chain);
  return chain;
}

bool Judges(const SequenceParams& params, const Proposal& draft = {}, const DecoderConfig& spec = kWhole) {
  return CanRun({.params = &params, .round_start = 0, .work = VerifyTask{.draft = draft}}, spec);
}

bool Drafts(const SequenceParams& params, int draft_tokens = 4, const DecoderConfig& spec = kWhole) {
  return CanRun({.params = &params, .round_start = 0, .work = ProposeTask{.draft_tokens = draft_tokens}},
                spec);
}

SequenceParams Params(Rule rule = Rule::kToken) {
  SequenceParams params;
  params.rule = rule;
  params.draft_top_n = 64;
  return params;
}

TEST(CanRun, SomeControlsAreTheHosts) {
  const auto both = [](auto&& change) {
    SequenceParams params = Params();
    change(params.sampling);
    EXPECT_EQ(Judges(params), Drafts(params));
    return Judges(params);
  };
  EXPECT_TRUE(both([](auto& s) { s.temperature = 0; }));
  EXPECT_TRUE(both([](auto& s) { s.top_k = 40, s.top_p = .9, s.min_p = .1; }));
  EXPECT_TRUE(both([](auto& s) { s.min_tokens = 5; }));  // without EOS ids there is nothing to mask
  EXPECT_FALSE(both([](auto& s) { s.min_tokens = 5, s.eos_ids = {2}; }));
  EXPECT_FALSE(both([](auto& s) { s.repetition_penalty = 1.1; }));
  EXPECT_FALSE(both([](auto& s) { s.presence_penalty = .5; }));
  EXPECT_FALSE(both([](auto& s) { s.frequency_penalty = .5; }));
  EXPECT_FALSE(both([](auto& s) { s.logit_bias = {{7, 1.0f}}; }));
  EXPECT_FALSE(both([](auto& s) { s.allowed_ids = {7}; }));
  EXPECT_FALSE(both([](auto& s) { s.bad_ids = {7}; }));
}

TEST(CanRun, ACutHeadDraftsWhatNeedsNoOtherToken) {
  DecoderConfig cut = kWhole;
  for (int token = 0; token < kVocab; token += 10) cut.head_tokens.push_back(token);
  EXPECT_TRUE(Drafts(Params(), 4, cut));
  EXPECT_FALSE(Drafts(Params(Rule::kCoupled), 4, cut));
  EXPECT_FALSE(Judges(Params(), {}, cut));
  SequenceParams params = Params();
  params.draft_top_n = 100;  // all tokens
  EXPECT_FALSE(Drafts(params, 4, cut));
}

TEST(CanRun, JudgesByTheTokenRuleWithoutLenienceAndByTheCoupledRule) {
  EXPECT_TRUE(Judges(Params(Rule::kToken)));
  EXPECT_TRUE(Judges(Params(Rule::kCoupled)));
  EXPECT_FALSE(Judges(Params(Rule::kBlock)));
  SequenceParams params = Params();
  params.lenience = 2;
  EXPECT_FALSE(Judges(params));
  EXPECT_TRUE(Drafts(params));
  params = Params();
  params.logprobs = 0;
  EXPECT_FALSE(Judges(params));
  EXPECT_TRUE(Drafts(params));
}

TEST(CanRun, JudgesDistributionsThatItHasRoomFor) {
  const SequenceParams token = Params(Rule::kToken), coupled = Params(Rule::kCoupled);
  EXPECT_TRUE(Judges(token, Chain(3, Sparse(kMaxTopN))));
  EXPECT_FALSE(Judges(token, Chain(3, Sparse(kMaxTopN + 1))));
  EXPECT_TRUE(Judges(token, Chain(3, {.form = Distribution::Form::kPointMass, .ids = {1}, .total = 1})));
  EXPECT_FALSE(Judges(token, Chain(3, {.form = Distribution::Form::kDense})));
  EXPECT_FALSE(Judges(token, Chain(3, {})));
  EXPECT_TRUE(Judges(coupled, Chain(3, {})));
}

TEST(CanRun, JudgesChainsOfAsManyTokensAsARoundMayDraft) {
  EXPECT_TRUE(Judges(Params(), Chain(kMaxDraftTokens, Sparse(4))));
  EXPECT_FALSE(Judges(Params(), Chain(kMaxDraftTokens + 1, Sparse(4))));
  Proposal siblings = Chain(2, Sparse(4));
  siblings[1].parent = -1;
  EXPECT_FALSE(Judges(Params(), siblings));
}

TEST(CanRun, DraftsFromDistributionsThatItHasRoomFor) {
  SequenceParams params = Params();
  EXPECT_TRUE(Drafts(params, kMaxDraftTokens));
  EXPECT_FALSE(Drafts(params, kMaxDraftTokens + 1));
  params.draft_top_n = kMaxTopN;
  EXPECT_TRUE(Drafts(params));
  params.draft_top_n = kMaxTopN + 1;
  EXPECT_FALSE(Drafts(params));
  // 0: all tokens. q is then dense, unless the rule needs none or q is a point mass.
  params.draft_top_n = 0;
  EXPECT_FALSE(Drafts(params));
  params.sampling.temperature = 0;
  EXPECT_TRUE(Drafts(params));
  params = Params(Rule::kCoupled);
  params.draft_top_n = 0;
  EXPECT_TRUE(Drafts(params));
}

}  // namespace
}  // namespace outrider::cuda
