#include "coordinator/api/parse_request.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "absl/strings/str_join.h"
#include "common/rpc/convert.h"
#include "common/rpc/fresh_bits.h"
#include "common/spec/distribution.h"
#include "common/text/json.h"
#include "common/text/stop_matcher.h"
#include "common/text/utf8.h"
#include "coordinator/api/tools.h"

namespace outrider {
namespace {

constexpr int kMaxLogitBiases = 1024;
// Rendering a message takes microseconds and kilobytes.
constexpr uint64_t kMaxMessages = 4096;
constexpr int kMaxEndIds = 1024;
// Parsed JSON takes about thirty times the memory of its text.
constexpr size_t kMaxFieldBytes = size_t{1} << 20;
constexpr char kDeveloper[] = "developer";  // the newer name of "system"
constexpr const char* kRoles[] = {"system", kDeveloper, "user", "assistant", "tool", "function"};

// The error has a reason of its own, since clients that cut their prompts to the context look for it.
absl::Status TooLong(absl::string_view length, size_t capacity) {
  const std::string range = absl::StrCat("1 to ", capacity - 1, " tokens");
  return MakeError(absl::StatusCode::kInvalidArgument, "CONTEXT_LENGTH_EXCEEDED",
                   absl::StrCat("prompt: ", length, " leave no room for an answer; allowed: ", range),
                   {{"field", "prompt"}, {"range", range}});
}

// Refuses text that is too long however it is tokenized, before anything reads it.
absl::Status RefuseTooLong(size_t bytes, const Tokenizer& tokenizer, size_t capacity) {
  const std::optional<size_t> longest = tokenizer.max_token_bytes();
  if (!longest || bytes < capacity * *longest) return absl::OkStatus();
  return TooLong(absl::StrCat(bytes, " bytes"), capacity);
}

absl::StatusOr<std::vector<TokenId>> Encode(const std::string& text, bool add_special_tokens,
                                            const Tokenizer& tokenizer, uint32_t vocab_size,
                                            absl::string_view field,
                                            std::span<const AddedTokens::Range> plain = {}) {
  auto tokens = tokenizer.Encode(text, add_special_tokens, plain);
  if (!tokens.ok()) {
    return FieldError(field, "text that the model's tokenizer can split", tokens.status().message());
  }
  // A tokenizer may have tokens that its model lacks, such as <image_soft_token> in Gemma 3 1B's.
  for (const TokenId token : *tokens) {
    if (static_cast<uint32_t>(token) < vocab_size) continue;
    return FieldError(field, absl::StrCat("text whose tokens are below ", vocab_size),
                      absl::StrCat("token ", token));
  }
  return tokens;
}

absl::Status CheckMessage(const v1::ChatMessage& message) {
  // Templates write roles into control tokens, so only known roles are allowed.
  const std::string& role = message.role();
  if (std::find(std::begin(kRoles), std::end(kRoles), role) == std::end(kRoles)) {
    return FieldError("chat.messages.role", absl::StrJoin(kRoles, ", "), role.empty() ? "empty" : role);
  }
  const auto is_text = [](const std::string& text) { return IsValidUtf8(text); };
  if (!is_text(message.content()) || !is_text(message.fields()) ||
      !std::all_of(message.parts().begin(), message.parts().end(), is_text)) {
    return FieldError("chat.messages", "valid UTF-8", "invalid UTF-8");
  }
  if (!message.parts().empty() && !message.content().empty()) {
    return FieldError("chat.messages.parts", "none if there is content", "both");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TokenId>> ParseChat(const v1::ChatPrompt& chat, const RequestDefaults& defaults,
                                               const Tokenizer& tokenizer, uint32_t vocab_size,
                                               std::optional<size_t> capacity) {
  if (defaults.chat_template == nullptr) {
    return FieldError("chat", "text or tokens",
                      absl::StrCat(defaults.no_chat, ", so that there are no conversations"));
  }
  if (chat.messages().empty()) return FieldError("chat.messages", "at least one", "empty");
  OUTRIDER_TRY(CheckRange("chat.messages", chat.messages_size(), 1, kMaxMessages));
  size_t bytes = 0, field_bytes = chat.chat_template_kwargs().size() + chat.tools().size();
  for (const v1::ChatMessage& message : chat.messages()) {
    bytes += message.content().size();
    for (const std::string& part : message.parts()) bytes += part.size();
    field_bytes += message.fields().size();
  }
  if (field_bytes > kMaxFieldBytes) {
    return FieldError("chat.messages.fields",
                      absl::StrCat("at most ", kMaxFieldBytes, " bytes with chat_template_kwargs and tools"),
                      absl::StrCat(field_bytes, " bytes"));
  }
  if (!chat.chat_template_kwargs().empty()) {
    if (auto status = ChatTemplate::CheckVariables(chat.chat_template_kwargs()); !status.ok()) {
      return FieldError("chat.chat_template_kwargs",
                        "a JSON object without messages, tools, documents and add_generation_prompt",
                        status.message());
    }
  }
  if (!chat.tools().empty()) {
    if (auto status = CheckTools(chat.tools()); !status.ok()) {
      return FieldError("chat.tools", "a JSON array of at most 128 objects", status.message());
    }
  }
  Conversation conversation{.variables = chat.chat_template_kwargs(),
                            .tools = chat.tools(),
                            .continue_final_message = chat.continue_final_message()};
  if (capacity) OUTRIDER_TRY(RefuseTooLong(bytes, tokenizer, *capacity));
  for (const v1::ChatMessage& message : chat.messages()) {
    OUTRIDER_TRY(CheckMessage(message));
    const bool is_new = message.role() == kDeveloper && !defaults.chat_template->Mentions(kDeveloper);
    conversation.messages.push_back({is_new ? "system" : message.role(),
                                     message.content(),
                                     {message.parts().begin(), message.parts().end()},
                                     message.fields()});
  }
  AdaptTools(*defaults.chat_template, &conversation);
  const absl::StatusOr<RenderedChat> chat_text =
      defaults.chat_template->Render(conversation, std::time(nullptr));
  if (!chat_text.ok()) {
    return FieldError("chat.messages", "what the model's chat template takes", chat_text.status().message());
  }
  std::span<const AddedTokens::Range> plain = chat_text->content;
  if (defaults.control_tokens_in_chat) plain = {};
  std::vector<TokenId> tokens = OUTRIDER_TRY(
      Encode(chat_text->text, /*add_special_tokens=*/false, tokenizer, vocab_size, "chat.messages", plain));
  if (!tokens.empty()) return tokens;
  return FieldError("chat.messages", "at least one token", "the template writes nothing");
}

absl::StatusOr<std::vector<TokenId>> ParsePrompt(const v1::GenerateRequest& proto, const Tokenizer& tokenizer,
                                                 uint32_t vocab_size, size_t capacity,
                                                 const RequestDefaults& defaults) {
  switch (proto.prompt_case()) {
    case v1::GenerateRequest::kText:
      if (proto.text().empty()) return FieldError("text", "at least one character", "empty");
      OUTRIDER_TRY(RefuseTooLong(proto.text().size(), tokenizer, capacity));
      if (!IsValidUtf8(proto.text())) return FieldError("text", "valid UTF-8", "invalid UTF-8");
      return Encode(proto.text(), /*add_special_tokens=*/true, tokenizer, vocab_size, "text");
    case v1::GenerateRequest::kTokens:
      if (proto.tokens().ids().empty()) return FieldError("tokens.ids", "at least one", "empty");
      if (static_cast<size_t>(proto.tokens().ids_size()) >= capacity) {
        return TooLong(absl::StrCat(proto.tokens().ids_size(), " tokens"), capacity);
      }
      OUTRIDER_TRY(CheckTokenIds(proto.tokens().ids(), vocab_size, "tokens.ids"));
      return ToTokens(proto.tokens().ids());
    case v1::GenerateRequest::kChat:
      return ParseChat(proto.chat(), defaults, tokenizer, vocab_size, capacity);
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  return FieldError("prompt", "text, tokens or chat", "missing");
}

// The prediction is plain text, as an answer is: it has no control tokens.
absl::StatusOr<std::vector<TokenId>> ParsePrediction(const v1::GenerateRequest& proto,
                                                     const Tokenizer& tokenizer, uint32_t vocab_size,
                                                     size_t capacity) {
  const std::string& text = proto.prediction();
  if (text.empty()) return std::vector<TokenId>();
  if (proto.has_beam() || !RefuseTooLong(text.size(), tokenizer, capacity).ok()) {
    return FieldError("prediction", proto.has_beam() ? "none with beam" : "a text that fits the context",
                      absl::StrCat(text.size(), " bytes"));
  }
  if (!IsValidUtf8(text)) return FieldError("prediction", "valid UTF-8", "invalid UTF-8");
  const AddedTokens::Range all[] = {{0, text.size()}};
  return Encode(text, /*add_special_tokens=*/false, tokenizer, vocab_size, "prediction", all);
}

absl::Status CheckStops(const v1::GenerateRequest& proto, uint32_t vocab_size) {
  const v1::StopOptions& stop = proto.stop();
  const std::vector<std::string> strings(stop.strings().begin(), stop.strings().end());
  if (auto matcher = StopMatcher::Create(strings); !matcher.ok()) {
    return FieldError("stop.strings",
                      absl::StrCat("at most ", StopMatcher::kMaxStopStrings, ", each 1 to ",
                                   StopMatcher::kMaxStopBytes, " bytes of UTF-8"),
                      matcher.status().message());
  }
  if (stop.has_max_tokens() && stop.max_tokens() == 0 && proto.has_beam()) {
    return FieldError("stop.max_tokens", "1 or more with beam", "0");
  }
  return CheckTokenIds(stop.token_ids(), vocab_size, "stop.token_ids");
}

absl::Status ParseLogprobs(const v1::LogprobOptions& options, Request& request) {
  OUTRIDER_TRY(CheckRange("logprobs.top", options.top(), 0, kMaxTopLogProbabilities));
  OUTRIDER_TRY(CheckRange("logprobs.prompt", options.prompt(), 0, kMaxTopLogProbabilities));
  if (options.has_top()) request.params.set_logprobs(options.top());
  request.params.set_logprobs_before_controls(options.before_controls());
  if (options.has_prompt()) request.prompt_logprobs = static_cast<int>(options.prompt());
  return absl::OkStatus();
}

absl::Status ParseSamples(const v1::GenerateRequest& proto, int max_samples, Request& request) {
  if (proto.has_n()) {
    OUTRIDER_TRY(CheckRange("n", proto.n(), 1, max_samples));
    request.samples = static_cast<int>(proto.n());
  }
  if (request.samples > 1 && !request.resumed.empty()) {
    return FieldError("resume_from", "empty if n is more than 1",
                      absl::StrCat(proto.resume_from_size(), " ids"));
  }
  const uint32_t last = std::numeric_limits<uint32_t>::max() - static_cast<uint32_t>(request.samples - 1);
  request.params.set_sample_index(proto.sample_index());
  return CheckRange("sample_index", proto.sample_index(), 0, last);
}

// Limits what a client can make the servers keep for a sequence.
absl::Status CheckSizes(const v1::GenerateRequest& proto, int vocab_size) {
  const v1::SamplingParams& sampling = proto.sampling();
  for (const auto& [size, field, most] :
       {std::tuple(sampling.logit_bias_size(), "sampling.logit_bias", kMaxLogitBiases),
        std::tuple(sampling.allowed_ids_size(), "sampling.allowed_ids", vocab_size),
        std::tuple(sampling.bad_ids_size(), "sampling.bad_ids", vocab_size),
        std::tuple(proto.stop().token_ids_size(), "stop.token_ids", kMaxEndIds)}) {
    if (size <= most) continue;
    return FieldError(field, absl::StrCat("at most ", most, " entries"), absl::StrCat(size, " entries"));
  }
  return CheckRange("speculation.draft_top_n", proto.speculation().draft_top_n(), 0, vocab_size);
}

absl::Status CheckGrammar(const v1::GenerateRequest& proto) {
  if (!proto.sampling().has_grammar()) return absl::OkStatus();
  if (proto.stop().ignore_eos())
    return FieldError("stop.ignore_eos", "false with a grammar, which says where a text ends", "true");
  return FieldErrorUnder("sampling", ParseGrammar(proto.sampling().grammar()).status());
}

// Parses the options that change the draft's distribution (draft_temperature) or the answer's (lenience).
absl::Status ParseDraftTemperatureAndLenience(const v1::SpeculationOptions& speculation,
                                              v1::SequenceParams& params) {
  if (speculation.has_draft_temperature()) {
    const float temperature = speculation.draft_temperature();
    if (!(temperature >= 0 && temperature <= 100)) {
      return FieldError("speculation.draft_temperature", "[0, 100]", absl::StrCat(temperature));
    }
    params.set_draft_temperature(temperature);
  }
  if (speculation.has_lenience()) {
    const float lenience = speculation.lenience();
    if (!(lenience > 0 && lenience <= 1)) {
      return FieldError("speculation.lenience", "(0, 1]", absl::StrCat(lenience));
    }
    if (lenience < 1 && params.rule() != v1::RULE_TOKEN) {
      return FieldError("speculation.lenience", "1 unless the rule is token", absl::StrCat(lenience));
    }
    params.set_lenience(lenience);
  }
  return absl::OkStatus();
}

// Only the draft service gains from running ahead.
absl::Status ParseSchedule(const v1::SpeculationOptions& speculation, const RequestDefaults& defaults,
                           Request& request) {
  v1::Schedule schedule = speculation.schedule();
  if (schedule == v1::SCHEDULE_UNSPECIFIED) schedule = defaults.schedule;
  if (!v1::Schedule_IsValid(schedule)) {
    return FieldError("speculation.schedule", "lockstep, run_ahead, auto",
                      absl::StrCat("unknown value ", static_cast<int>(schedule)));
  }
  const bool auto_asks_model =
      request.drafter == v1::DRAFTER_KIND_AUTO && request.params.proposer() == v1::PROPOSER_UNSPECIFIED;
  const bool asks_model =
      defaults.has_draft_service && (request.drafter == v1::DRAFTER_KIND_MODEL || auto_asks_model);
  request.schedule = asks_model ? schedule : v1::SCHEDULE_LOCKSTEP;
  return absl::OkStatus();
}

using Json = nlohmann::json;

std::optional<float> Number(const Json& config, const char* name) {
  const auto found = config.find(name);
  if (found == config.end() || !found->is_number()) return std::nullopt;
  return found->get<float>();
}

}  // namespace

absl::StatusOr<Request> ParseRequest(const v1::GenerateRequest& proto, const RequestDefaults& defaults,
                                     const Tokenizer& tokenizer, const v1::ServerInfo& target) {
  Request request;
  const uint32_t vocab_size = target.vocab_size();
  const size_t capacity =
      std::min<size_t>(target.max_context(), static_cast<size_t>(target.kv_blocks()) * target.block_size());
  OUTRIDER_TRY(CheckSizes(proto, static_cast<int>(vocab_size)));
  request.prompt = OUTRIDER_TRY(ParsePrompt(proto, tokenizer, vocab_size, capacity, defaults));
  if (request.prompt.size() >= capacity)
    return TooLong(absl::StrCat(request.prompt.size(), " tokens"), capacity);
  OUTRIDER_TRY(CheckTokenIds(proto.resume_from(), vocab_size, "resume_from"));
  request.resumed = ToTokens(proto.resume_from());

  OUTRIDER_TRY(CheckStops(proto, vocab_size));
  OUTRIDER_TRY(CheckGrammar(proto));
  request.stop_strings.assign(proto.stop().strings().begin(), proto.stop().strings().end());
  request.end_ids = ToTokens(proto.stop().token_ids());
  if (!proto.stop().ignore_eos()) {
    request.end_ids.insert(request.end_ids.end(), target.eos_ids().begin(), target.eos_ids().end());
  }
  const size_t room = capacity - request.prompt.size();
  const size_t wanted = proto.stop().has_max_tokens() ? proto.stop().max_tokens() : room;
  request.max_tokens = static_cast<int>(std::min(wanted, room));
  if (request.resumed.size() > static_cast<size_t>(request.max_tokens)) {
    return FieldError("resume_from", absl::StrCat("at most ", request.max_tokens, " ids"),
                      absl::StrCat(request.resumed.size(), " ids"));
  }

  v1::SequenceParams& params = request.params;
  if (!proto.has_beam()) *params.mutable_sampling() = defaults.sampling;
  params.mutable_sampling()->MergeFrom(proto.sampling());
  for (TokenId id : request.end_ids) params.add_end_ids(static_cast<uint32_t>(id));
  constexpr uint32_t kMaxInt = std::numeric_limits<int32_t>::max();
  OUTRIDER_TRY(CheckRange("sampling.top_k", proto.sampling().top_k(), 0, kMaxInt));
  OUTRIDER_TRY(CheckRange("sampling.min_tokens", proto.sampling().min_tokens(), 0, kMaxInt));
  const SamplingParams sampling = ParseSampling(params.sampling(), params.end_ids());
  if (auto status = ValidateSamplingParams(sampling, static_cast<int>(vocab_size)); !status.ok()) {
    return FieldErrorUnder("sampling", status);
  }
  params.set_seed(proto.has_seed() ? proto.seed() : FreshBits());
  OUTRIDER_TRY(ParseSamples(proto, defaults.max_samples, request));
  params.set_prompt_length(static_cast<uint32_t>(request.prompt.size()));
  params.set_draft_top_n(proto.speculation().draft_top_n());
  params.set_rule(proto.speculation().rule() == v1::RULE_UNSPECIFIED ? defaults.rule
                                                                     : proto.speculation().rule());
  if (auto rule = ParseRule(params.rule()); !rule.ok()) {
    return FieldError("speculation.rule", "token, block, coupled",
                      absl::StrCat("unknown value ", static_cast<int>(params.rule())));
  }

  // Under the ratio rules the random numbers of a token depend on where its round began, hence on K.
  const bool repeatable = params.rule() == v1::RULE_COUPLED || sampling.temperature == 0 || !proto.has_seed();
  request.prediction = OUTRIDER_TRY(ParsePrediction(proto, tokenizer, vocab_size, capacity));
  OUTRIDER_TRY(ParseDrafter(proto.speculation(), defaults, target, repeatable, request));
  OUTRIDER_TRY(ParseSchedule(proto.speculation(), defaults, request));
  request.trace = proto.trace();
  request.echo = proto.echo();
  OUTRIDER_TRY(ParseLogprobs(proto.logprobs(), request));
  OUTRIDER_TRY(ParseDraftTemperatureAndLenience(proto.speculation(), params));
  const bool is_greedy = sampling.temperature == 0;
  const TreeLimits limits{
      .target = target, .default_tree = defaults.tree, .is_greedy = is_greedy, .repeatable = repeatable};
  OUTRIDER_TRY(ParseTree(proto.speculation(), limits, request));
  OUTRIDER_TRY(ParseBeam(proto, defaults, target, request));
  return request;
}

absl::StatusOr<std::vector<TokenId>> ParseTokenize(const v1::TokenizeRequest& proto,
                                                   const RequestDefaults& defaults,
                                                   const Tokenizer& tokenizer, uint32_t vocab_size) {
  if (proto.has_chat()) return ParseChat(proto.chat(), defaults, tokenizer, vocab_size, std::nullopt);
  if (!proto.has_text()) return FieldError("prompt", "text or chat", "missing");
  if (!IsValidUtf8(proto.text())) return FieldError("text", "valid UTF-8", "invalid UTF-8");
  return Encode(proto.text(), !proto.without_special_tokens(), tokenizer, vocab_size, "text");
}

absl::StatusOr<v1::SamplingParams> ReadSamplingDefaults(const std::string& model) {
  v1::SamplingParams sampling;
  const std::string path = (std::filesystem::path(model) / "generation_config.json").string();
  const Json config = OUTRIDER_TRY(JsonObjectIfThere(path));
  if (const auto value = Number(config, "temperature")) sampling.set_temperature(*value);
  if (const auto value = Number(config, "top_p")) sampling.set_top_p(*value);
  if (const auto value = Number(config, "min_p")) sampling.set_min_p(*value);
  if (const auto value = Number(config, "repetition_penalty")) sampling.set_repetition_penalty(*value);
  if (const auto value = Number(config, "top_k")) {
    if (!(*value >= 0 && *value <= 1e9)) return Invalid(path, ": top_k is not in [0, 1e9]");
    sampling.set_top_k(static_cast<uint32_t>(*value));
  }
  // None of these values depends on the vocabulary's size.
  const absl::Status status =
      ValidateSamplingParams(ParseSampling(sampling, {}), std::numeric_limits<int>::max());
  if (!status.ok()) return Invalid(path, ": ", status.message());
  return sampling;
}

}  // namespace outrider
