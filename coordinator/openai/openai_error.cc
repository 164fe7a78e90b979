#include "coordinator/openai/openai_error.h"

#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/rpc/error.h"
#include "common/text/json.h"

namespace outrider {
namespace {

struct Kind {
  int status;
  const char* type;
};

Kind KindOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return {400, "invalid_request_error"};
    case absl::StatusCode::kUnauthenticated:
      return {401, "invalid_request_error"};
    case absl::StatusCode::kPermissionDenied:
      return {403, "invalid_request_error"};
    case absl::StatusCode::kNotFound:
      return {404, "invalid_request_error"};
    case absl::StatusCode::kResourceExhausted:
      return {429, "rate_limit_error"};
    case absl::StatusCode::kUnavailable:
      return {503, "service_unavailable_error"};
    case absl::StatusCode::kDeadlineExceeded:
      return {504, "timeout_error"};
    default:
      return {500, "server_error"};
  }
}

// A field of GenerateRequest by its name in OpenAI's API. The names of the gateway's own errors are those.
std::string ParamOf(const std::string& field, Endpoint endpoint) {
  const bool chat = endpoint == Endpoint::kChat;
  static const auto* const names = new std::map<std::string, std::string>{
      {"text", "prompt"},
      {"tokens.ids", "prompt"},
      {"chat", "messages"},
      {"chat.chat_template_kwargs", "chat_template_kwargs"},
      {"chat.messages", "messages"},
      {"chat.messages.role", "messages"},
      {"logprobs.prompt", "logprobs"},
      {"sampling.allowed_ids", "allowed_token_ids"},
      {"stop.strings", "stop"},
      {"stop.token_ids", "stop_token_ids"},
  };
  if (const auto name = names->find(field); name != names->end()) return name->second;
  if (field == "logprobs.top") return chat ? "top_logprobs" : "logprobs";
  if (field == "prompt") return chat ? "messages" : "prompt";
  for (const char* section : {"sampling.", "stop.", "speculation."}) {
    if (absl::StartsWith(field, section)) return field.substr(std::string(section).size());
  }
  return field;
}

std::string CodeOf(const std::string& reason) {
  if (reason == "FIELD_INVALID") return "invalid_value";
  if (reason == "UNAUTHENTICATED") return "invalid_api_key";
  return absl::AsciiStrToLower(reason);
}

}  // namespace

HttpError ToHttpError(const absl::Status& status, Endpoint endpoint) {
  const Kind kind = KindOf(status.code());
  HttpError error{.status = kind.status, .body = ""};
  std::string message(status.message());
  nlohmann::ordered_json param = nullptr;
  if (const std::string field = MetadataOf(status, "field"); !field.empty()) {
    const std::string name = ParamOf(field, endpoint);
    param = name;
    if (absl::StartsWith(message, absl::StrCat(field, ":"))) message.replace(0, field.size(), name);
  }
  // A header of whole seconds.
  error.retry_after_seconds =
      static_cast<int>(absl::ToInt64Seconds(absl::Ceil(RetryDelay(status), absl::Seconds(1))));
  const nlohmann::ordered_json body = {
      {"error",
       {{"message", message}, {"type", kind.type}, {"param", param}, {"code", CodeOf(ReasonOf(status))}}}};
  error.body = DumpJson(body);
  return error;
}

}  // namespace outrider
