#include "coordinator/vllm/vllm_request.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/grammar/json_schema.h"
#include "common/spec/status.h"
#include "coordinator/api/renamed_field.h"

namespace outrider {
namespace {

constexpr uint32_t kDefaultMaxTokens = 20;  // vLLM's

absl::Status Unsupported(absl::string_view field) {
  return MakeError(absl::StatusCode::kInvalidArgument, "UNSUPPORTED_PARAMETER",
                   absl::StrCat(field, ": not supported"), {{"field", field}});
}

// Accepts values that ask for what happens anyway.
absl::Status RefuseUnsupported(const vllm::GenerateRequest& request) {
  const vllm::StoppingCriteria& stopping = request.stopping();
  const vllm::ResponseOptions& response = request.response();
  const vllm::KVCacheParameters& kv = request.kv();
  for (const auto& [field, asked] :
       {std::pair("media", !request.media().empty()), std::pair("lora_name", !request.lora_name().empty()),
        std::pair("stopping.include_stop_strings", stopping.include_stop_strings()),
        std::pair("stopping.thinking_token_budget",
                  stopping.has_thinking_token_budget() && stopping.thinking_token_budget() != -1),
        std::pair("response.skip_special_tokens",
                  response.has_skip_special_tokens() && !response.skip_special_tokens()),
        std::pair("kv.bypass_prefix_cache", kv.bypass_prefix_cache()),
        std::pair("kv.cache_salt", !kv.cache_salt().empty()),
        std::pair("kv.kv_transfer_params", kv.has_kv_transfer_params()),
        std::pair("kv.ec_transfer_params", kv.has_ec_transfer_params())}) {
    if (asked) return Unsupported(field);
  }
  return absl::OkStatus();
}

// Returns how many alternatives to report.
absl::StatusOr<uint32_t> ParseCandidates(absl::string_view field, const vllm::CandidateTokens& candidates) {
  switch (candidates.select_case()) {
    case vllm::CandidateTokens::kTokenIds:
      return Unsupported(absl::StrCat(field, ".token_ids"));
    case vllm::CandidateTokens::kAll:
      if (candidates.all()) return Unsupported(absl::StrCat(field, ".all"));
      return 0U;
    default:
      return candidates.top_n();
  }
}

// Asks for the model's own probabilities at temperature 1, as vLLM does.
absl::Status ParseLogprobs(const vllm::ResponseOptions& response, v1::LogprobOptions* logprobs) {
  logprobs->set_before_controls(true);
  if (response.output_logprobs()) {
    const uint32_t top =
        OUTRIDER_TRY(ParseCandidates("response.output_candidates", response.output_candidates()));
    logprobs->set_top(top);
  }
  if (response.prompt_logprobs()) {
    const uint32_t top =
        OUTRIDER_TRY(ParseCandidates("response.prompt_candidates", response.prompt_candidates()));
    logprobs->set_prompt(top);
  }
  return absl::OkStatus();
}

void ParseGrammar(const vllm::DecodingParameters& decoding, v1::SamplingParams* sampling) {
  switch (decoding.structured_output_case()) {
    case vllm::DecodingParameters::kJson:
      return sampling->mutable_grammar()->set_json_schema(decoding.json());
    case vllm::DecodingParameters::kRegex:
      return sampling->mutable_grammar()->set_regex(decoding.regex());
    case vllm::DecodingParameters::kChoice:
      *sampling->mutable_grammar()->mutable_choices()->mutable_texts() = decoding.choice().choices();
      return;
    case vllm::DecodingParameters::kGrammar:
      return sampling->mutable_grammar()->set_ebnf(decoding.grammar());
    case vllm::DecodingParameters::kJsonObject:
      if (decoding.json_object()) sampling->mutable_grammar()->set_json_schema(kAnyObject);
      return;
    case vllm::DecodingParameters::kStructuralTag:
      return sampling->mutable_grammar()->set_structural_tag(decoding.structural_tag());
    case vllm::DecodingParameters::STRUCTURED_OUTPUT_NOT_SET:
      return;
  }
}

absl::Status ParseDecoding(const vllm::DecodingParameters& decoding, v1::SamplingParams* sampling) {
  sampling->set_presence_penalty(decoding.presence_penalty());
  sampling->set_frequency_penalty(decoding.frequency_penalty());
  if (decoding.repetition_penalty() != 0) sampling->set_repetition_penalty(decoding.repetition_penalty());
  // A protobuf map has no order. Sorting gives equal requests equal translations.
  for (const auto& [token, bias] :
       std::map<uint32_t, float>(decoding.logit_bias().begin(), decoding.logit_bias().end())) {
    v1::LogitBias* const entry = sampling->add_logit_bias();
    entry->set_token(token);
    entry->set_bias(bias);
  }
  *sampling->mutable_allowed_ids() = decoding.allowed_token_ids();
  constexpr char kBadWords[] = "decoding.bad_words_token_ids";
  for (const vllm::TokenIds& word : decoding.bad_words_token_ids()) {
    if (word.ids_size() != 1) {
      return FieldError(kBadWords, "sequences of one token", absl::StrCat("one of ", word.ids_size()));
    }
    sampling->add_bad_ids(word.ids(0));
  }
  ParseGrammar(decoding, sampling);
  return absl::OkStatus();
}

void ParseStopping(const vllm::StoppingCriteria& stopping, v1::StopOptions* stop) {
  stop->set_max_tokens(stopping.max_new_tokens() > 0 ? stopping.max_new_tokens() : kDefaultMaxTokens);
  *stop->mutable_token_ids() = stopping.stop_token_ids();
  *stop->mutable_strings() = stopping.stop_strings();
  stop->set_ignore_eos(stopping.ignore_eos());
}

// vLLM's name for a field of v1::GenerateRequest.
std::string VllmNameOf(const std::string& field, const vllm::GenerateRequest& request) {
  static const auto* const names = new std::map<std::string, std::string>{
      {"tokens.ids", "token_ids.ids"},
      {"sampling.temperature", "temperature"},
      {"sampling.presence_penalty", "decoding.presence_penalty"},
      {"sampling.frequency_penalty", "decoding.frequency_penalty"},
      {"sampling.repetition_penalty", "decoding.repetition_penalty"},
      {"sampling.logit_bias", "decoding.logit_bias"},
      {"sampling.allowed_ids", "decoding.allowed_token_ids"},
      {"sampling.bad_ids", "decoding.bad_words_token_ids"},
      {"sampling.min_tokens", "stopping.min_new_tokens"},
      {"stop.max_tokens", "stopping.max_new_tokens"},
      {"stop.token_ids", "stopping.stop_token_ids"},
      {"stop.strings", "stopping.stop_strings"},
      {"stop.ignore_eos", "stopping.ignore_eos"},
      {"logprobs.top", "response.output_candidates.top_n"},
      {"logprobs.prompt", "response.prompt_candidates.top_n"},
  };
  if (field == "sampling.grammar" && request.decoding().structured_output_case() != 0) {
    const auto* const form = vllm::DecodingParameters::descriptor()->FindFieldByNumber(
        request.decoding().structured_output_case());
    return absl::StrCat("decoding.", form->name());
  }
  const auto name = names->find(field);
  return name == names->end() ? field : name->second;
}

}  // namespace

absl::StatusOr<v1::GenerateRequest> ParseVllmRequest(const vllm::GenerateRequest& request, bool streams,
                                                     const VllmDefaults& defaults) {
  OUTRIDER_TRY(RefuseUnsupported(request));
  v1::GenerateRequest translated;
  const vllm::RandomSampling& random = request.sampling();
  const uint32_t most = streams ? defaults.max_samples : 1;
  if (random.num_sequences() > most) {
    return OutOfRange("sampling.num_sequences", random.num_sequences(),
                      absl::StrCat("[0, ", most, "]", streams ? "" : " but for GenerateStream"));
  }
  if (random.num_sequences() > 1) translated.set_n(random.num_sequences());
  if (random.has_seed()) translated.set_seed(static_cast<uint64_t>(random.seed()));
  v1::SamplingParams* const sampling = translated.mutable_sampling();
  if (request.has_temperature() || !defaults.model_has_temperature) {
    sampling->set_temperature(request.temperature());
  }
  if (random.has_top_k()) sampling->set_top_k(random.top_k());
  if (random.has_top_p()) sampling->set_top_p(random.top_p());
  if (random.has_min_p()) sampling->set_min_p(random.min_p());
  OUTRIDER_TRY(ParseDecoding(request.decoding(), sampling));
  sampling->set_min_tokens(request.stopping().min_new_tokens());
  ParseStopping(request.stopping(), translated.mutable_stop());
  OUTRIDER_TRY(ParseLogprobs(request.response(), translated.mutable_logprobs()));
  if (request.has_text()) {
    translated.set_text(request.text());
  } else if (request.has_token_ids()) {
    SetPromptTokens(request.token_ids().ids(), request, &translated);
  }
  return translated;
}

bool NeedsTokens(const vllm::GenerateRequest& request) {
  return !request.text().empty() &&
         (request.truncate_prompt_tokens() > 0 || request.response().prompt_token_ids());
}

void SetPromptTokens(const google::protobuf::RepeatedField<uint32_t>& ids,
                     const vllm::GenerateRequest& request, v1::GenerateRequest* translated) {
  auto kept = static_cast<uint32_t>(ids.size());
  if (request.truncate_prompt_tokens() > 0) kept = std::min(kept, request.truncate_prompt_tokens());
  translated->mutable_tokens()->mutable_ids()->Assign(ids.end() - kept, ids.end());
}

absl::Status WithVllmField(const absl::Status& status, const vllm::GenerateRequest& request) {
  const std::string field = MetadataOf(status, "field");
  const std::string name = VllmNameOf(field, request);
  if (name == field) return status;
  absl::Status renamed(status.code(), MessageAbout(name, status));
  status.ForEachPayload(
      [&](absl::string_view type, const absl::Cord& payload) { renamed.SetPayload(type, payload); });
  renamed.SetPayload(absl::StrCat(kMetadataType, "field"), absl::Cord(name));
  return renamed;
}

}  // namespace outrider
