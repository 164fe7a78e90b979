// The engine's items, converted from items on the wire.
#include "common/serve/serve_item.h"

#include <gmock/gmock.h>

#include "common/rpc/error.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

constexpr int kVocab = 100;
constexpr int kDefaultTopN = 64;

v1::SequenceUpdate Update() {
  v1::SequenceUpdate update;
  update.set_sequence_id("0123456789abcdef");
  update.set_round(7);
  update.set_base(3);
  for (uint32_t token : {10, 20, 30, 40}) update.add_tokens(token);
  update.set_prefix_hash(11);
  update.set_params_hash(12);
  update.mutable_params()->set_rule(v1::RULE_TOKEN);
  return update;
}

WorkItem Parsed(const v1::SequenceUpdate& update) {
  absl::StatusOr<WorkItem> item = ParseUpdate(update, kVocab, kDefaultTopN);
  EXPECT_TRUE(item.ok()) << item.status();
  return item.ok() ? *std::move(item) : WorkItem();
}

// The field for which an item with this change is refused.
std::string Refused(const std::function<void(v1::SequenceUpdate&)>& spoil) {
  v1::SequenceUpdate update = Update();
  spoil(update);
  return MetadataOf(Parsed(update).invalid, "field");
}

TEST(ParseUpdate, TakesOverTheEnvelope) {
  const WorkItem item = Parsed(Update());
  EXPECT_TRUE(item.invalid.ok()) << item.invalid;
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(&item.id), sizeof(item.id)), "0123456789abcdef");
  EXPECT_EQ(item.round, 7u);
  EXPECT_EQ(item.base, 3u);
  EXPECT_THAT(item.tokens, ElementsAre(10, 20, 30, 40));
  EXPECT_EQ(item.committed(), 7u);
  EXPECT_EQ(item.prefix_hash, 11u);
  EXPECT_EQ(item.params_hash, 12u);
  EXPECT_FALSE(item.fork_of);
  EXPECT_EQ(item.deadline, absl::InfiniteFuture());
}

TEST(ParseUpdate, TakesOverTheParameters) {
  v1::SequenceUpdate update = Update();
  v1::SequenceParams& params = *update.mutable_params();
  params.set_seed(5);
  params.set_sample_index(6);
  params.set_rule(v1::RULE_BLOCK);
  params.set_prompt_length(2);
  params.add_end_ids(99);
  params.set_draft_top_n(8);
  params.set_draft_temperature(0.5f);
  params.set_logprobs(3);
  params.set_logprobs_before_controls(true);
  v1::SamplingParams& sampling = *params.mutable_sampling();
  sampling.set_temperature(0.25f);
  sampling.set_top_k(4);
  sampling.set_top_p(0.5f);
  sampling.set_min_p(0.125f);
  sampling.set_repetition_penalty(1.5f);
  sampling.set_presence_penalty(-1);
  sampling.set_frequency_penalty(2);
  sampling.set_min_tokens(9);
  sampling.add_allowed_ids(1);
  sampling.add_bad_ids(2);
  v1::LogitBias* bias = sampling.add_logit_bias();
  bias->set_token(3);
  bias->set_bias(-4);

  const WorkItem item = Parsed(update);
  ASSERT_NE(item.params, nullptr);
  EXPECT_EQ(item.params->key.seed, 5u);
  EXPECT_EQ(item.params->key.sample_index, 6u);
  EXPECT_EQ(item.params->rule, Rule::kBlock);
  EXPECT_EQ(item.params->prompt_length, 2) << "and not as many tokens as came";
  EXPECT_EQ(item.params->draft_top_n, 8);
  EXPECT_EQ(item.params->draft_temperature, 0.5);
  EXPECT_EQ(item.params->lenience, 1);
  EXPECT_EQ(item.params->logprobs, 3);
  EXPECT_TRUE(item.params->logprobs_before_controls);
  const SamplingParams& parsed = item.params->sampling;
  EXPECT_EQ(parsed.temperature, 0.25);
  EXPECT_EQ(parsed.top_k, 4);
  EXPECT_EQ(parsed.top_p, 0.5);
  EXPECT_EQ(parsed.min_p, 0.125);
  EXPECT_EQ(parsed.repetition_penalty, 1.5);
  EXPECT_EQ(parsed.presence_penalty, -1);
  EXPECT_EQ(parsed.frequency_penalty, 2);
  EXPECT_EQ(parsed.min_tokens, 9);
  EXPECT_THAT(parsed.eos_ids, ElementsAre(99));
  EXPECT_THAT(parsed.allowed_ids, ElementsAre(1));
  EXPECT_THAT(parsed.bad_ids, ElementsAre(2));
  EXPECT_THAT(parsed.logit_bias, ElementsAre(Pair(3, -4.0f)));
}

TEST(ParseUpdate, WhatIsNotSaidHasItsDefault) {
  const WorkItem item = Parsed(Update());
  EXPECT_EQ(item.params->draft_top_n, kDefaultTopN);
  EXPECT_FALSE(item.params->draft_temperature);
  EXPECT_EQ(item.params->logprobs, -1);
  EXPECT_EQ(item.params->sampling.temperature, 1);
  EXPECT_EQ(item.params->sampling.top_p, 1);
  EXPECT_EQ(item.params->sampling.repetition_penalty, 1);
  v1::SequenceUpdate known = Update();
  known.clear_params();
  EXPECT_EQ(Parsed(known).params, nullptr);
}

TEST(ParseUpdate, RefusesUnderItsIdWhatCannotBe) {
  EXPECT_EQ(Refused([](auto& u) { u.clear_tokens(); }), "tokens");
  EXPECT_EQ(Refused([](auto& u) { u.add_tokens(kVocab); }), "tokens");
  EXPECT_EQ(Refused([](auto& u) { u.set_fork_of("short"); }), "fork_of");
  EXPECT_EQ(Refused([](auto& u) { u.set_fork_of(u.sequence_id()); }), "fork_of");
  EXPECT_EQ(Refused([](auto& u) { u.mutable_params()->set_logprobs(1000); }), "logprobs");
  EXPECT_EQ(Refused([](auto& u) { u.mutable_params()->set_lenience(2); }), "lenience");
  v1::SequenceUpdate unruly = Update();
  unruly.mutable_params()->set_rule(v1::RULE_UNSPECIFIED);
  EXPECT_EQ(ReasonOf(Parsed(unruly).invalid), "RULE_UNKNOWN");
}

TEST(ParseUpdate, OfSeveralErrorsTheFirstIsTheAnswer) {
  EXPECT_EQ(Refused([](auto& u) {
              u.add_tokens(kVocab);
              u.set_fork_of("short");
              u.mutable_params()->set_lenience(2);
            }),
            "tokens");
  EXPECT_EQ(Refused([](auto& u) {
              u.mutable_params()->set_logprobs(1000);
              u.mutable_params()->set_rule(v1::RULE_UNSPECIFIED);
            }),
            "logprobs");
}

TEST(ParseUpdate, WithoutAnIdThereIsNoItem) {
  v1::SequenceUpdate update = Update();
  update.set_sequence_id("fifteen bytes..");
  EXPECT_EQ(ReasonOf(ParseUpdate(update, kVocab, kDefaultTopN).status()), "SEQUENCE_ID_INVALID");
}

TEST(ParseUpdate, ABudgetIsADeadlineAndNoneIsNone) {
  v1::SequenceUpdate update = Update();
  update.mutable_budget();
  EXPECT_EQ(Parsed(update).deadline, absl::InfiniteFuture());
  update.mutable_budget()->set_seconds(3600);
  update.mutable_budget()->set_nanos(1);
  const absl::Time before = absl::Now();
  const absl::Time deadline = Parsed(update).deadline;
  EXPECT_GE(deadline, before + absl::Hours(1));
  EXPECT_LE(deadline, absl::Now() + absl::Hours(1) + absl::Nanoseconds(1));
}

TEST(ItemError, OnlyWhatPassesSaysWhenToTryAgain) {
  const auto delay = [](const absl::Status& status) { return RetryDelay(FromProto(ItemError(status))); };
  EXPECT_GT(delay(absl::ResourceExhaustedError("full")), absl::ZeroDuration());
  EXPECT_GT(delay(absl::UnavailableError("draining")), absl::ZeroDuration());
  EXPECT_EQ(delay(absl::InvalidArgumentError("bad")), absl::ZeroDuration());
}

}  // namespace
}  // namespace outrider
