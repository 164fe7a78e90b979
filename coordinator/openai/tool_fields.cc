#include "coordinator/openai/tool_fields.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/grammar/grammar.h"
#include "common/grammar/json_schema.h"
#include "common/text/json.h"
#include "coordinator/openai/chat_fields.h"

namespace outrider {
namespace {

using Json = OrderedJson;

constexpr size_t kMaxNameBytes = 256;
constexpr char kNoArguments[] = R"({"type":"object","properties":{},"additionalProperties":false})";

// A member of an object; null if it is absent.
Json MemberOf(const Json& object, const char* name) {
  return object.is_object() ? object.value(name, Json()) : Json();
}

// The function that `tool` describes; nullopt if it is malformed.
std::optional<ToolUse::Function> FunctionOf(const Json& tool) {
  const Json function = MemberOf(tool, "function"), name = MemberOf(function, "name");
  if (MemberOf(tool, "type") != "function" || !name.is_string()) return std::nullopt;
  ToolUse::Function result{.name = name.get<std::string>(),
                           .parameters = MemberOf(function, "parameters"),
                           .strict = MemberOf(function, "strict") == Json(true)};
  if (result.name.empty() || result.name.size() > kMaxNameBytes) return std::nullopt;
  if (result.parameters.is_null()) result.parameters = *ParseJson<Json>(kNoArguments);
  if (!result.parameters.is_object()) return std::nullopt;
  return result;
}

// Sets the choice, and keeps only the functions that it allows.
void ParseChoice(JsonFields& fields, ToolUse* tools) {
  constexpr char kAllowed[] =
      R"("none", "auto", "required" or {"type": "function", "function": {"name": the name of a tool}})";
  const nlohmann::json* const choice = fields.Find("tool_choice");
  tools->choice = tools->functions.empty() ? ToolUse::Choice::kNone : ToolUse::Choice::kAuto;
  if (choice == nullptr || *choice == "auto") return;
  if (*choice == "none") {
    tools->choice = ToolUse::Choice::kNone;
    tools->functions.clear();
    return;
  }
  if (*choice == "required") {
    tools->choice = ToolUse::Choice::kRequired;
    if (tools->functions.empty()) fields.Refuse("tool_choice", "none or auto without tools", "required");
    return;
  }
  const Json name = MemberOf(MemberOf(Json(*choice), "function"), "name");
  std::erase_if(tools->functions, [&](const auto& function) { return Json(function.name) != name; });
  tools->choice = ToolUse::Choice::kNamed;
  if (tools->functions.empty()) fields.Refuse("tool_choice", kAllowed, Shown(*choice));
}

// The text of a format before and after a call, its key for arguments, and the text between two calls.
struct CallForm {
  const char* before;
  const char* arguments;
  const char* after;
  const char* separator;
};

CallForm FormOf(v1::ToolFormat format) {
  switch (format) {
    case v1::TOOL_FORMAT_HERMES:
      return {"<tool_call>\n", "arguments", "\n</tool_call>", "\n"};
    case v1::TOOL_FORMAT_LLAMA:
      return {"", "parameters", "", ""};
    default:
      return {"", "arguments", "", ", "};
  }
}

// The next functions build XGrammar's structural tags (see its docs/structural_tag).

Json SchemaTag(const Json& schema) {
  return {{"type", "json_schema"}, {"json_schema", schema}, {"max_whitespace_cnt", kMaxJsonWhitespace}};
}

Json TagsOf(const ToolUse& tools, v1::ToolFormat format) {
  const CallForm form = FormOf(format);
  const bool all = tools.forced();
  Json tags = Json::array();
  for (const ToolUse::Function& function : tools.functions) {
    const std::string begin = absl::StrCat(form.before, R"({"name": )", DumpJson(Json(function.name)), ", \"",
                                           form.arguments, "\": ");
    tags.push_back(
        {{"type", "tag"},
         {"begin", begin},
         {"content", SchemaTag(all || function.strict ? function.parameters : *ParseJson<Json>(kAnyObject))},
         {"end", absl::StrCat("}", form.after)}});
  }
  return tags;
}

Json Text(const char* text) { return {{"type", "const_string"}, {"value", text}}; }

// The tag for an answer that is one call, or several.
Json CallsTag(const ToolUse& tools, v1::ToolFormat format) {
  const auto calls = [&](bool several) -> Json {
    return {{"type", "tags_with_separator"},
            {"tags", TagsOf(tools, format)},
            {"separator", FormOf(format).separator},
            {"at_least_one", true},
            {"stop_after_first", !several}};
  };
  const auto list = [&](bool several) -> Json {
    return {{"type", "sequence"}, {"elements", Json::array({Text("["), calls(several), Text("]")})}};
  };
  // Llama's models call one function at a time.
  if (format == v1::TOOL_FORMAT_LLAMA) return calls(false);
  if (format == v1::TOOL_FORMAT_HERMES) return calls(tools.parallel);
  if (format == v1::TOOL_FORMAT_MISTRAL) return list(tools.parallel);
  if (!tools.parallel) return calls(false);
  return {{"type", "or"}, {"elements", Json::array({calls(false), list(true)})}};
}

// The tag for any text in which everything that begins like a call is one.
Json FreeTag(const ToolUse& tools, v1::ToolFormat format) {
  const bool is_marked = format == v1::TOOL_FORMAT_HERMES;
  return {{"type", "triggered_tags"},
          {"triggers", Json::array({is_marked ? "<tool_call>" : R"({"name": ")"})},
          {"tags", TagsOf(tools, format)},
          {"at_least_one", false},
          {"stop_after_first", false}};
}

}  // namespace

ToolUse ParseToolFields(JsonFields& fields, v1::ChatPrompt* chat) {
  ToolUse tools;
  tools.parallel = fields.Bool("parallel_tool_calls").value_or(true);
  const nlohmann::json* const given = fields.Find("tools");
  if (given == nullptr || CountsAsAbsent(*given)) {
    ParseChoice(fields, &tools);
    return tools;
  }
  const Json* const ordered = fields.InOrder("tools");
  if (ordered == nullptr) return tools;
  const Json& list = ordered->at("tools");
  const auto refuse = [&](const Json& shown) {
    fields.Refuse("tools",
                  R"(a list of {"type": "function", "function": {"name", "description", "parameters"}})",
                  Shown(nlohmann::json(shown)));
    return ToolUse();
  };
  if (!list.is_array()) return refuse(list);
  absl::flat_hash_set<std::string> names;
  for (const Json& tool : list) {
    std::optional<ToolUse::Function> function = FunctionOf(tool);
    if (!function) return refuse(tool);
    if (!names.insert(function->name).second) {
      fields.Refuse("tools", "one tool of each name", absl::StrCat("two called ", function->name));
    }
    tools.functions.push_back(*std::move(function));
  }
  ParseChoice(fields, &tools);
  if (tools.choice != ToolUse::Choice::kNone) chat->set_tools(DumpJson(list));
  return tools;
}

absl::StatusOr<bool> ConstrainToTools(const ToolUse& tools, v1::ToolFormat format,
                                      v1::SamplingParams* sampling) {
  const bool is_strict = std::ranges::any_of(tools.functions, &ToolUse::Function::strict);
  if (tools.choice == ToolUse::Choice::kNone) return false;
  Json tag;
  if (tools.forced()) {
    if (sampling->has_grammar() && !sampling->grammar().has_json_schema()) {
      return FieldError("tool_choice", "none or auto with a grammar that is no JSON Schema", "both");
    }
    tag = CallsTag(tools, format);
  } else if (sampling->has_grammar() && sampling->grammar().has_json_schema()) {
    // Leaves a malformed schema in place, so that it is refused as a schema later.
    const auto schema = ParseJson<Json>(sampling->grammar().json_schema());
    if (!schema.ok()) return false;
    tag = {{"type", "or"}, {"elements", Json::array({SchemaTag(*schema), CallsTag(tools, format)})}};
  } else if (is_strict && !sampling->has_grammar()) {
    tag = FreeTag(tools, format);
  } else {
    return false;
  }
  sampling->mutable_grammar()->set_structural_tag(
      DumpJson(Json{{"type", "structural_tag"}, {"format", tag}}));
  return true;
}

}  // namespace outrider
