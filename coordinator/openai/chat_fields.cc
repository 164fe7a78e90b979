#include "coordinator/openai/chat_fields.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/text/json.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

// The texts of a list of parts; nullopt if `content` is no list, or a part is not just a text.
std::optional<std::vector<std::string>> TextParts(const Json& content) {
  if (!content.is_array()) return std::nullopt;
  std::vector<std::string> texts;
  for (const Json& part : content) {
    if (!part.is_object()) return std::nullopt;
    const auto type = part.find("type"), text = part.find("text");
    const bool is_text = type != part.end() && *type == "text" && text != part.end() && text->is_string();
    if (!is_text) return std::nullopt;
    for (const auto& [name, value] : part.items()) {
      if (name != "type" && name != "text" && !CountsAsAbsent(value)) return std::nullopt;
    }
    texts.push_back(text->get<std::string>());
  }
  return texts;
}

// Sets a message's content: a string, text parts or, for an assistant, none. Returns false for anything else.
bool SetContent(const Json& message, v1::ChatMessage* turn) {
  const auto found = message.find("content");
  if (found == message.end() || found->is_null()) return turn->role() == "assistant";
  if (found->is_string()) {
    turn->set_content(found->get<std::string>());
    return true;
  }
  const auto parts = TextParts(*found);
  if (!parts) return false;
  turn->mutable_parts()->Add(parts->begin(), parts->end());
  return true;
}

// Whether `call` is a tool call as in an answer, or one whose arguments are an object.
bool IsToolCall(const Json& call) {
  if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) return false;
  const Json& function = call["function"];
  const Json name = function.value("name", Json()), arguments = function.value("arguments", Json(""));
  return name.is_string() && (arguments.is_string() || arguments.is_object());
}

bool IsToolCalls(const Json& calls) {
  return CountsAsAbsent(calls) || (calls.is_array() && std::all_of(calls.begin(), calls.end(), IsToolCall));
}

// Sets the message's other fields, which a template may read.
template <typename AnyJson>
void SetFields(AnyJson message, v1::ChatMessage* turn) {
  message.erase("role");
  message.erase("content");
  for (auto field = message.begin(); field != message.end();) {
    field = CountsAsAbsent(*field) ? message.erase(field) : std::next(field);
  }
  if (!message.empty()) turn->set_fields(DumpJson(message));
}

void ParseMessages(JsonFields& fields, v1::ChatPrompt* chat) {
  const Json* messages = fields.Find("messages");
  if (messages == nullptr || !messages->is_array()) {
    return fields.Refuse("messages", "a list of messages",
                         messages == nullptr ? "missing" : Shown(*messages));
  }
  // Templates write calls as objects, so the order of their members must be kept.
  const auto calls = [](const Json& message) {
    return message.is_object() && message.contains("tool_calls");
  };
  const OrderedJson* ordered = nullptr;
  if (std::any_of(messages->begin(), messages->end(), calls)) {
    ordered = fields.InOrder("messages");
    if (ordered == nullptr) return;
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    const Json& message = (*messages)[i];
    v1::ChatMessage* turn = chat->add_messages();
    const bool whole = message.is_object() && message.contains("role") && message["role"].is_string();
    if (whole) turn->set_role(message["role"].get<std::string>());
    if (!whole || !SetContent(message, turn)) {
      return fields.Refuse("messages",
                           "messages with a role and a text, or parts that have a type and a text",
                           Shown(message));
    }
    for (const char* name : {"function_call", "audio"}) {
      const auto found = message.find(name);
      if (found != message.end() && !CountsAsAbsent(*found)) {
        return fields.Refuse("messages", absl::StrCat("messages without ", name), Shown(message));
      }
    }
    if (calls(message) && !IsToolCalls(message["tool_calls"])) {
      return fields.Refuse("messages",
                           R"(tool_calls as a list of {"function": {"name": a text, "arguments": a text}})",
                           Shown(message["tool_calls"]));
    }
    ordered != nullptr ? SetFields(ordered->at("messages")[i], turn) : SetFields(message, turn);
  }
}

}  // namespace

void ParseChatFields(JsonFields& fields, v1::ChatPrompt* chat) {
  ParseMessages(fields, chat);
  const Json* variables = fields.Find("chat_template_kwargs");
  if (variables != nullptr && !variables->is_object()) {
    return fields.Refuse("chat_template_kwargs", "an object", Shown(*variables));
  }
  if (variables != nullptr) chat->set_chat_template_kwargs(DumpJson(*variables));
  const bool goes_on = fields.Bool("continue_final_message").value_or(false);
  chat->set_continue_final_message(goes_on);
  if (fields.Bool("add_generation_prompt").value_or(!goes_on) == goes_on) {
    fields.Refuse("add_generation_prompt", goes_on ? "false with continue_final_message" : "true",
                  goes_on ? "true" : "false");
  }
}

void ParsePrediction(JsonFields& fields, v1::GenerateRequest* request) {
  const Json* const prediction = fields.Find("prediction");
  if (prediction == nullptr) return;
  const Json content = prediction->is_object() && prediction->value("type", Json()) == "content"
                           ? prediction->value("content", Json())
                           : Json();
  if (content.is_string()) {
    request->set_prediction(content.get<std::string>());
  } else if (const auto parts = TextParts(content)) {
    request->set_prediction(absl::StrJoin(*parts, ""));
  } else {
    fields.Refuse("prediction", R"({"type": "content", "content": a text or a list of parts that are text})",
                  Shown(*prediction));
  }
}

}  // namespace outrider
