#include "coordinator/api/tools.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/spec/status.h"
#include "common/text/json.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxTools = 128;  // as in OpenAI's API
constexpr char kTool[] = "tool";
constexpr char kCalls[] = "tool_calls";

// Parses the arguments of calls: OpenAI's API has them as a string, but templates write an object.
void ReadArguments(Json* calls) {
  for (Json& call : *calls) {
    Json* const function = call.is_object() && call.contains("function") ? &call["function"] : &call;
    if (!function->is_object() || !function->contains("arguments")) continue;
    Json& arguments = (*function)["arguments"];
    if (!arguments.is_string()) continue;
    auto read = ParseJson<Json>(arguments.get_ref<const std::string&>());
    if (read.ok() && read->is_object()) arguments = *std::move(read);
  }
}

std::string Description(const Json& tools) {
  std::string text = "You can call these functions:\n";
  for (const Json& tool : tools) {
    absl::StrAppend(&text, DumpJson(tool.contains("function") ? tool["function"] : tool), "\n");
  }
  absl::StrAppend(&text,
                  R"(To call one, answer with {"name": its name, "arguments": an object} and nothing else.)",
                  " To call several, answer with a list of such objects.");
  return text;
}

// Writes the calls of a message in the form that Description asks for.
std::string Calls(const Json& calls) {
  Json list = Json::array();
  for (const Json& call : calls) {
    const Json& function = call.contains("function") ? call["function"] : call;
    list.push_back(
        {{"name", function.value("name", Json())}, {"arguments", function.value("arguments", Json())}});
  }
  return DumpJson(list.size() == 1 ? list[0] : list);
}

// Whether the template writes messages of tools: it mentions their role, or writes messages of any role.
bool WritesTools(const ChatTemplate& chat_template) {
  if (chat_template.Mentions(kTool)) return true;
  constexpr char kSaid[] = "what a tool said";
  const auto tried =
      chat_template.Render({.messages = {{"user", "?"}, {"assistant", "!"}, {kTool, kSaid}}}, 0);
  return tried.ok() && absl::StrContains(tried->text, kSaid);
}

// Makes `text` the whole content of the message.
void SetText(std::string text, ChatMessage* message) {
  message->content = std::move(text);
  message->parts.clear();
}

}  // namespace

v1::ToolFormat ToolFormatOf(const ChatTemplate* chat_template) {
  if (chat_template == nullptr) return v1::TOOL_FORMAT_UNSPECIFIED;
  const auto has = [&](absl::string_view word) { return chat_template->Mentions(word); };
  if (!has("tools")) return v1::TOOL_FORMAT_JSON;
  // Mistral's newer templates write the name outside of the JSON, and some templates with <tool_call> write
  // XML inside it.
  if (has("[TOOL_CALLS]") && !has("[ARGS]")) return v1::TOOL_FORMAT_MISTRAL;
  if (has("<tool_call>") && !has("<function=") && !has("<arg_key>")) return v1::TOOL_FORMAT_HERMES;
  if (has("ipython") && has("\"parameters\"")) return v1::TOOL_FORMAT_LLAMA;
  return v1::TOOL_FORMAT_JSON;
}

absl::Status CheckTools(const std::string& tools) {
  const Json json = OUTRIDER_TRY(ParseJson<Json>(tools));
  if (!json.is_array() || !std::ranges::all_of(json, &Json::is_object))
    return Invalid("not a list of objects");
  if (json.size() > kMaxTools) return Invalid(json.size(), " tools");
  return absl::OkStatus();
}

void AdaptTools(const ChatTemplate& chat_template, Conversation* chat) {
  if (std::ranges::count(chat->messages, kTool, &ChatMessage::role) > 0 && !WritesTools(chat_template)) {
    for (ChatMessage& message : chat->messages) {
      if (message.role != kTool) continue;
      message.role = "user";
      SetText(DumpJson(Json{{"tool_response", message.Text()}}), &message);
    }
  }
  for (ChatMessage& message : chat->messages) {
    if (message.fields.find(kCalls) == std::string::npos) continue;
    Json fields = ParseJson<Json>(message.fields).value_or(Json());
    if (!fields.is_object() || !fields.contains(kCalls) || !fields[kCalls].is_array()) continue;
    ReadArguments(&fields[kCalls]);
    if (!chat_template.Mentions(kCalls)) {
      const std::string text = message.Text();
      SetText(absl::StrCat(text, text.empty() ? "" : "\n", Calls(fields[kCalls])), &message);
      fields.erase(kCalls);
    }
    message.fields = DumpJson(fields);
  }
  if (chat->tools.empty() || chat_template.Mentions("tools")) return;
  const std::string description = Description(*ParseJson<Json>(std::exchange(chat->tools, "")));
  if (!chat->messages.empty() && chat->messages[0].role == "system") {
    SetText(absl::StrCat(chat->messages[0].Text(), "\n\n", description), &chat->messages[0]);
  } else {
    chat->messages.insert(chat->messages.begin(), {.role = "system", .content = description});
  }
}

}  // namespace outrider
