// Requests of vLLM's protocol: what each field is translated to, and what is refused.
#include "coordinator/vllm/vllm_request.h"

#include <gmock/gmock.h>

#include "common/spec/status.h"
#include "tests/unit/vllm_testing.h"

namespace outrider {
namespace {

constexpr VllmDefaults kDefaults = {.model_has_temperature = false, .max_samples = 4};

absl::StatusOr<v1::GenerateRequest> Translate(const std::string& asked, bool streams = true) {
  return ParseVllmRequest(FromText<vllm::GenerateRequest>(asked), streams, kDefaults);
}

struct Translation {
  const char* asked;
  const char* becomes;  // in addition to what is set for each request
};

class VllmTranslation : public ::testing::TestWithParam<Translation> {};

TEST_P(VllmTranslation, IsExact) {
  auto wanted = FromText<v1::GenerateRequest>(
      "sampling { temperature: 0 } stop { max_tokens: 20 } logprobs { before_controls: true }");
  wanted.MergeFrom(FromText<v1::GenerateRequest>(GetParam().becomes));
  const auto translated = Translate(GetParam().asked);
  ASSERT_TRUE(translated.ok()) << translated.status();
  EXPECT_EQ(translated->DebugString(), wanted.DebugString());
}

INSTANTIATE_TEST_SUITE_P(
    Fields, VllmTranslation,
    ::testing::Values(
        Translation{"", ""},  // the service says that there is no prompt
        Translation{"text: 'a'", "text: 'a'"},
        Translation{"token_ids { ids: [5, 6] }", "tokens { ids: [5, 6] }"},
        Translation{"token_ids { ids: [5, 6, 7] } truncate_prompt_tokens: 2", "tokens { ids: [6, 7] }"},
        Translation{"token_ids { ids: [5, 6] } truncate_prompt_tokens: 9", "tokens { ids: [5, 6] }"},
        Translation{"temperature: 0.5", "sampling { temperature: 0.5 }"},
        Translation{"sampling { num_sequences: 1 }", ""},  //
        Translation{"sampling { num_sequences: 4 }", "n: 4"},
        Translation{"sampling { top_k: 3 top_p: 0.5 min_p: 0.25 seed: 7 }",
                    "sampling { top_k: 3 top_p: 0.5 min_p: 0.25 } seed: 7"},
        Translation{"sampling { top_k: 0 top_p: 0 min_p: 0 seed: 0 }",
                    "sampling { top_k: 0 top_p: 0 min_p: 0 } seed: 0"},
        Translation{"sampling { seed: -1 }", "seed: 18446744073709551615"},
        Translation{"decoding { presence_penalty: 1 frequency_penalty: 0.5 repetition_penalty: 1.5 }",
                    "sampling { presence_penalty: 1 frequency_penalty: 0.5 repetition_penalty: 1.5 }"},
        Translation{"decoding { repetition_penalty: 0 }", ""},
        Translation{"decoding { logit_bias { key: 9 value: 1 } logit_bias { key: 3 value: -2 } }",
                    "sampling { logit_bias { token: 3 bias: -2 } logit_bias { token: 9 bias: 1 } }"},
        Translation{"decoding { allowed_token_ids: [4, 5] }", "sampling { allowed_ids: [4, 5] }"},
        Translation{"decoding { bad_words_token_ids { ids: 4 } bad_words_token_ids { ids: 6 } }",
                    "sampling { bad_ids: [4, 6] }"},
        Translation{"decoding { json: '{}' }", "sampling { grammar { json_schema: '{}' } }"},
        Translation{"decoding { regex: 'a+' }", "sampling { grammar { regex: 'a+' } }"},
        Translation{"decoding { choice { choices: ['a', 'b'] } }",
                    "sampling { grammar { choices { texts: ['a', 'b'] } } }"},
        Translation{"decoding { grammar: 'root ::= \"a\"' }",
                    "sampling { grammar { ebnf: 'root ::= \"a\"' } }"},
        Translation{"decoding { structural_tag: '{}' }", "sampling { grammar { structural_tag: '{}' } }"},
        Translation{
            "decoding { json_object: true }",
            "sampling { grammar { json_schema: '{\"type\":\"object\",\"additionalProperties\":true}' } }"},
        Translation{"decoding { json_object: false }", ""},
        Translation{"stopping { max_new_tokens: 5 min_new_tokens: 2 ignore_eos: true }",
                    "stop { max_tokens: 5 ignore_eos: true } sampling { min_tokens: 2 }"},
        Translation{"stopping { stop_token_ids: [8, 9] stop_strings: 'x' }",
                    "stop { token_ids: [8, 9] strings: 'x' }"},
        Translation{"response { output_logprobs: true prompt_logprobs: true }",
                    "logprobs { top: 0 prompt: 0 }"},
        Translation{"response { output_logprobs: true output_candidates { top_n: 3 }"
                    "           prompt_logprobs: true prompt_candidates { top_n: 2 } }",
                    "logprobs { top: 3 prompt: 2 }"},
        Translation{"response { output_logprobs: true output_candidates { all: false } }",
                    "logprobs { top: 0 }"},
        Translation{"response { output_candidates { all: true } }", ""},  // without log-probabilities
        Translation{"stopping { thinking_token_budget: -1 } response { skip_special_tokens: true } kv {}",
                    ""}));

struct Refused {
  const char* asked;
  const char* field;
  const char* reason = "UNSUPPORTED_PARAMETER";
};

class VllmRefusal : public ::testing::TestWithParam<Refused> {};

TEST_P(VllmRefusal, NamesTheField) {
  const absl::Status status = Translate(GetParam().asked).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MetadataOf(status, "field"), GetParam().field);
  EXPECT_EQ(ReasonOf(status), GetParam().reason);
  EXPECT_THAT(std::string(status.message()), ::testing::StartsWith(GetParam().field));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, VllmRefusal,
    ::testing::Values(Refused{"media {}", "media"}, Refused{"lora_name: 'x'", "lora_name"},
                      Refused{"stopping { include_stop_strings: true }", "stopping.include_stop_strings"},
                      Refused{"stopping { thinking_token_budget: 0 }", "stopping.thinking_token_budget"},
                      Refused{"response { skip_special_tokens: false }", "response.skip_special_tokens"},
                      Refused{"kv { bypass_prefix_cache: true }", "kv.bypass_prefix_cache"},
                      Refused{"kv { cache_salt: 'x' }", "kv.cache_salt"},
                      Refused{"kv { kv_transfer_params {} }", "kv.kv_transfer_params"},
                      Refused{"kv { ec_transfer_params {} }", "kv.ec_transfer_params"},
                      Refused{"response { output_logprobs: true output_candidates { all: true } }",
                              "response.output_candidates.all"},
                      Refused{"response { output_logprobs: true output_candidates { token_ids {} } }",
                              "response.output_candidates.token_ids"},
                      Refused{"response { prompt_logprobs: true prompt_candidates { all: true } }",
                              "response.prompt_candidates.all"},
                      Refused{"decoding { bad_words_token_ids { ids: [4, 5] } }",
                              "decoding.bad_words_token_ids", "FIELD_INVALID"},
                      Refused{"decoding { bad_words_token_ids {} }", "decoding.bad_words_token_ids",
                              "FIELD_INVALID"},
                      Refused{"sampling { num_sequences: 5 }", "sampling.num_sequences", "FIELD_INVALID"}));

TEST(VllmRequest, OnlyAStreamHasSeveralTexts) {
  EXPECT_TRUE(Translate("sampling { num_sequences: 1 }", /*streams=*/false).ok());
  const absl::Status status = Translate("sampling { num_sequences: 2 }", /*streams=*/false).status();
  EXPECT_EQ(MetadataOf(status, "field"), "sampling.num_sequences");
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("GenerateStream"));
}

TEST(VllmRequest, AModelsOwnTemperatureComesBeforeVllms) {
  const auto translate = [](const std::string& asked) {
    return ParseVllmRequest(FromText<vllm::GenerateRequest>(asked), true, {.model_has_temperature = true})
        .value();
  };
  EXPECT_FALSE(translate("").sampling().has_temperature());
  EXPECT_EQ(translate("temperature: 0.5").sampling().temperature(), 0.5f);
}

TEST(VllmRequest, TextIsSplitWhereItsTokensAreReportedOrCut) {
  const auto needs = [](const std::string& asked) {
    return NeedsTokens(FromText<vllm::GenerateRequest>(asked));
  };
  EXPECT_FALSE(needs("text: 'a'"));
  EXPECT_TRUE(needs("text: 'a' truncate_prompt_tokens: 1"));
  EXPECT_TRUE(needs("text: 'a' response { prompt_token_ids: true }"));
  EXPECT_FALSE(needs("token_ids { ids: 1 } response { prompt_token_ids: true }"));
  EXPECT_FALSE(needs("text: '' response { prompt_token_ids: true }")) << "the service refuses it";
}

TEST(VllmRequest, CutTextBecomesItsLastTokens) {
  const auto request = FromText<vllm::GenerateRequest>("text: 'abc' truncate_prompt_tokens: 2");
  v1::GenerateRequest translated = ParseVllmRequest(request, true, kDefaults).value();
  google::protobuf::RepeatedField<uint32_t> ids;
  for (const uint32_t id : {1, 2, 3}) ids.Add(id);
  SetPromptTokens(ids, request, &translated);
  EXPECT_THAT(translated.tokens().ids(), ::testing::ElementsAre(2, 3));
  EXPECT_FALSE(translated.has_text());
}

TEST(VllmRequest, ErrorsOfTheServiceNameVllmsFields) {
  const auto request = FromText<vllm::GenerateRequest>("decoding { regex: '(' }");
  for (const auto& [field, name] :
       {std::pair("sampling.temperature", "temperature"), std::pair("sampling.top_p", "sampling.top_p"),
        std::pair("sampling.logit_bias", "decoding.logit_bias"),
        std::pair("sampling.allowed_ids", "decoding.allowed_token_ids"),
        std::pair("sampling.bad_ids", "decoding.bad_words_token_ids"),
        std::pair("sampling.min_tokens", "stopping.min_new_tokens"),
        std::pair("sampling.repetition_penalty", "decoding.repetition_penalty"),
        std::pair("sampling.grammar", "decoding.regex"), std::pair("stop.strings", "stopping.stop_strings"),
        std::pair("stop.token_ids", "stopping.stop_token_ids"),
        std::pair("stop.ignore_eos", "stopping.ignore_eos"),
        std::pair("logprobs.top", "response.output_candidates.top_n"),
        std::pair("logprobs.prompt", "response.prompt_candidates.top_n"),
        std::pair("tokens.ids", "token_ids.ids"), std::pair("text", "text")}) {
    const absl::Status status = WithVllmField(OutOfRange(field, 7, "[0, 1]"), request);
    EXPECT_EQ(status.message(), absl::StrCat(name, ": 7 is not in [0, 1]"));
    EXPECT_EQ(MetadataOf(status, "field"), name);
    EXPECT_EQ(MetadataOf(status, "range"), "[0, 1]");
    EXPECT_EQ(ReasonOf(status), kFieldInvalid);
  }
  const absl::Status other = absl::UnavailableError("away");
  EXPECT_EQ(WithVllmField(other, request), other);
}

}  // namespace
}  // namespace outrider
