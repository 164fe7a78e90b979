// Which verdicts the coordinator takes, and which proposals it passes on.
#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <vector>

#include "common/rpc/convert.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

constexpr int kTokens = 100;

// A chain of tokens, each with all of q on it.
Proposal Chain(int length) {
  Proposal proposal;
  for (int i = 0; i < length; ++i) {
    proposal.push_back({.token = i, .parent = i - 1, .q = {.form = Distribution::Form::kPointMass}});
  }
  return proposal;
}

// A verdict that accepts the first nodes of a chain.
v1::Verdict Accepts(uint32_t accepted, v1::TokenKind kind) {
  v1::Verdict verdict;
  for (uint32_t i = 0; i < accepted; ++i) verdict.add_accepted(i);
  verdict.set_token(7);
  verdict.set_kind(kind);
  return verdict;
}

bool Stands(const v1::Verdict& verdict, int drafted) {
  const absl::Status status = ParseVerdict(verdict, Chain(drafted), kTokens).status();
  EXPECT_EQ(ReasonOf(status), status.ok() ? "OK" : "VERDICT_INVALID");
  return status.ok();
}

TEST(ParseVerdict, TakesTheKindThatGoesWithThePathAndNoOther) {
  const auto kinds = {v1::TOKEN_KIND_UNSPECIFIED, v1::TOKEN_KIND_PLAIN, v1::TOKEN_KIND_CORRECTED,
                      v1::TOKEN_KIND_BONUS, v1::TOKEN_KIND_ACCEPTED};
  for (const v1::TokenKind kind : kinds) {
    EXPECT_EQ(Stands(Accepts(0, kind), 0), kind == v1::TOKEN_KIND_PLAIN);
    EXPECT_EQ(Stands(Accepts(0, kind), 3), kind == v1::TOKEN_KIND_CORRECTED);
    EXPECT_EQ(Stands(Accepts(2, kind), 3), kind == v1::TOKEN_KIND_CORRECTED);
    EXPECT_EQ(Stands(Accepts(3, kind), 3), kind == v1::TOKEN_KIND_BONUS);
  }
}

TEST(ParseVerdict, TakesNoPathThatIsNotInTheProposal) {
  EXPECT_FALSE(Stands(Accepts(4, v1::TOKEN_KIND_BONUS), 3));
  EXPECT_FALSE(Stands(Accepts(1, v1::TOKEN_KIND_BONUS), 0));
  v1::Verdict skips = Accepts(0, v1::TOKEN_KIND_CORRECTED);
  skips.add_accepted(1);
  EXPECT_FALSE(Stands(skips, 3));
}

TEST(ParseVerdict, TakesNoTokenOutsideTheVocabulary) {
  v1::Verdict verdict = Accepts(0, v1::TOKEN_KIND_PLAIN);
  verdict.set_token(kTokens);
  EXPECT_FALSE(Stands(verdict, 0));
}

TEST(ParseVerdict, TakesNoCanaryThatWouldSpoilTheMetrics) {
  const auto stands = [](void (v1::Canary::*set)(double), double value) {
    v1::Verdict verdict = Accepts(2, v1::TOKEN_KIND_CORRECTED);
    (verdict.mutable_canary()->*set)(value);
    return Stands(verdict, 3);
  };
  for (const auto set : {&v1::Canary::set_expected_accepted, &v1::Canary::set_expected_accepted_variance,
                         &v1::Canary::set_surprisal, &v1::Canary::set_entropy}) {
    EXPECT_TRUE(stands(set, 1.5));
    EXPECT_TRUE(stands(set, -1e-9)) << "rounding";
    for (const double value : {std::nan(""), HUGE_VAL, -1.0, 1e9}) EXPECT_FALSE(stands(set, value)) << value;
  }
  v1::Verdict verdict = Accepts(2, v1::TOKEN_KIND_CORRECTED);
  verdict.mutable_canary()->set_reached(4);
  EXPECT_FALSE(Stands(verdict, 3));
}

TEST(CheckLogprobs, BelievesOnlyWhatCanBeTrueOfTheTokens) {
  google::protobuf::RepeatedPtrField<v1::PositionLogprobs> honest;
  for (const uint32_t token : {5, 6}) {
    v1::PositionLogprobs* position = honest.Add();
    position->mutable_token()->set_id(token);
    position->mutable_token()->set_logprob(-1.5);
    for (const double logprob : {-0.5, -0.5, -HUGE_VAL}) {
      position->add_top()->set_id(static_cast<uint32_t>(position->top_size()));
      position->mutable_top()->rbegin()->set_logprob(logprob);
    }
  }
  const std::vector<TokenId> tokens = {5, 6};
  const auto stands = [&](const std::function<void(v1::PositionLogprobs&)>& spoil) {
    auto spoilt = honest;
    spoil(spoilt[1]);
    const absl::Status status = CheckLogprobs(spoilt, tokens, 3, kTokens);
    EXPECT_EQ(ReasonOf(status), status.ok() ? "OK" : "VERDICT_INVALID");
    return status.ok();
  };
  EXPECT_TRUE(stands([](auto&) {}));
  EXPECT_TRUE(stands([](auto& position) { position.clear_top(); }));
  EXPECT_FALSE(CheckLogprobs(honest, std::vector<TokenId>{5}, 3, kTokens).ok());
  EXPECT_FALSE(CheckLogprobs(honest, tokens, 2, kTokens).ok());
  EXPECT_FALSE(stands([](auto& position) { position.mutable_token()->set_id(5); })) << "of another token";
  EXPECT_FALSE(stands([](auto& position) { position.mutable_top(0)->set_id(2); })) << "twice";
  EXPECT_FALSE(stands([](auto& position) { position.mutable_top(0)->set_id(kTokens); }));
  for (const double wrong : {std::nan(""), HUGE_VAL, 0.5}) {
    EXPECT_FALSE(stands([=](auto& position) { position.mutable_token()->set_logprob(wrong); })) << wrong;
    EXPECT_FALSE(stands([=](auto& position) { position.mutable_top(1)->set_logprob(wrong); })) << wrong;
  }
}

absl::Status Unprepared(const v1::Distribution& q, Rule rule) {
  google::protobuf::RepeatedPtrField<v1::DraftNode> nodes;
  nodes.Add()->set_parent(-1);
  *nodes.Mutable(0)->mutable_q() = q;
  return ParseUnpreparedProposal(nodes, rule, kTokens).status();
}

TEST(ParseUnpreparedProposal, WantsAsManyEntriesAsTheFormNeeds) {
  v1::Distribution q;
  EXPECT_EQ(ReasonOf(Unprepared(q, Rule::kToken)), "DRAFT_DISTRIBUTION_INVALID") << "there is none";
  EXPECT_TRUE(Unprepared(q, Rule::kCoupled).ok());
  q.mutable_sparse()->add_ids(0);
  EXPECT_FALSE(Unprepared(q, Rule::kToken).ok()) << "an id without a weight";
  q.mutable_sparse()->add_weights(1);
  EXPECT_TRUE(Unprepared(q, Rule::kToken).ok());
  for (int i = 0; i < kTokens; ++i) {
    q.mutable_sparse()->add_ids(0);
    q.mutable_sparse()->add_weights(1);
  }
  EXPECT_FALSE(Unprepared(q, Rule::kToken).ok()) << "more entries than tokens";
  q.mutable_dense()->add_weights(1);
  EXPECT_TRUE(Unprepared(q, Rule::kToken).ok()) << "the others have weight 0";
  q.mutable_dense()->mutable_weights()->Resize(kTokens, 1);
  EXPECT_TRUE(Unprepared(q, Rule::kToken).ok());
  q.mutable_dense()->add_weights(0);
  EXPECT_TRUE(Unprepared(q, Rule::kToken).ok()) << "of a draft with more tokens, which it may not propose";
  q.mutable_dense()->add_weights(1);
  EXPECT_FALSE(Unprepared(q, Rule::kToken).ok());
}

}  // namespace
}  // namespace outrider
