#include "coordinator/gateway/unsupported_fields.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/error.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

struct Unsupported {
  std::string name;
  // What happens anyway. Null: as if absent, which an empty value or false says too.
  Json harmless = nullptr;
};

const std::vector<Unsupported>& InBoth() {
  static const auto* const fields = new std::vector<Unsupported>{
      {"bad_words"},
      {"guided_choice"},
      {"guided_grammar"},
      {"guided_json"},
      {"guided_regex"},
      {"include_stop_str_in_output"},
      {"logits_processors"},
      {"prompt_embeds"},
      {"prompt_logprobs"},
      {"response_format", Json::object({{"type", "text"}})},
      {"return_token_ids"},
      {"return_tokens_as_token_ids"},
      {"skip_special_tokens", true},
      {"structured_outputs"},
      {"truncate_prompt_tokens"},
  };
  return *fields;
}

const std::vector<Unsupported>& Of(Endpoint endpoint) {
  static const auto* const completions = new std::vector<Unsupported>{
      {"add_special_tokens", true},
      {"suffix"},
  };
  static const auto* const chat = new std::vector<Unsupported>{
      {"add_special_tokens"},
      {"audio"},
      {"chat_template"},
      {"documents"},
      {"echo"},
      {"functions"},
      {"modalities", Json::array({"text"})},
      {"tools"},
      {"web_search_options"},
  };
  return endpoint == Endpoint::kChat ? *chat : *completions;
}

}  // namespace

bool IsNothing(const Json& value) {
  return value.is_null() || value == Json(false) || value == Json("") ||
         (value.is_structured() && value.empty());
}

absl::Status RefuseUnsupported(Endpoint endpoint, const Json& body) {
  for (const std::vector<Unsupported>* fields : {&InBoth(), &Of(endpoint)}) {
    for (const Unsupported& field : *fields) {
      const auto found = body.find(field.name);
      if (found == body.end() || found->is_null()) continue;
      if (field.harmless.is_null() ? IsNothing(*found) : *found == field.harmless) continue;
      return MakeError(
          absl::StatusCode::kInvalidArgument, "UNSUPPORTED_PARAMETER",
          absl::StrCat(field.name, ": not supported", field.harmless.is_null() ? "" : "; allowed: ",
                       field.harmless.is_null() ? "" : field.harmless.dump()),
          {{"field", field.name}});
    }
  }
  return absl::OkStatus();
}

}  // namespace outrider
