#include "coordinator/api/chat_template.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/gguf/gguf_file.h"
#include "common/gguf/model_path.h"
#include "common/spec/status.h"
#include "common/text/json.h"
#include "common/text/strings.h"
#include "coordinator/api/jinja_program.h"
#include "jinja/lexer.h"
#include "jinja/parser.h"
#include "jinja/runtime.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr char kConfigFile[] = "tokenizer_config.json";
constexpr char kTemplateFile[] = "chat_template.jinja";

// The engine treats a template's first character as white space if only white space stands between it and the
// first tag (llama.cpp, common/jinja/lexer.cpp). Replacing the character by an expression avoids that.
std::string WithItsFirstCharacter(std::string source) {
  const size_t tag = source.find('{', 1);
  const size_t next = source.find_first_not_of(" \t", 1);
  const bool is_text = !source.empty() && !absl::ascii_isblank(source[0]) && source[0] != '{';
  if (!is_text || next != tag || tag == std::string::npos || tag + 1 == source.size()) return source;
  if (source[tag + 1] != '%' && source[tag + 1] != '#') return source;
  if (source[0] == '\n') {
    // White space from the start of a line to a tag is dropped; a tag with a minus drops the line end, too.
    return source.substr(tag + 2, 1) == "-" ? source : R"({{ "\n" }})" + source.substr(tag);
  }
  const std::string quote = source[0] == '"' ? "'" : "\"";
  const std::string escape = source[0] == '\\' ? "\\" : "";
  return absl::StrCat("{{ ", quote, escape, source.substr(0, 1), quote, " }}", source.substr(1));
}

jinja::program ParseProgram(const std::string& source) {
  jinja::lexer lexer;
  const jinja::lexer_result tokens = lexer.tokenize(source);
  CheckTokens(source, tokens);
  return jinja::parse_from_tokens(tokens);
}

// The variables of a conversation that Render itself sets.
constexpr const char* kOwnVariables[] = {"messages", "tools", "documents", "add_generation_prompt"};

// Returns the line of an engine's message that says what is wrong, without the context around it.
std::string Reason(const std::string& message) {
  constexpr char kRaised[] = "Jinja Exception: ";
  const size_t raised = message.find(kRaised);
  if (raised != std::string::npos) return message.substr(raised + sizeof(kRaised) - 1);
  const size_t begin = message.find_first_not_of('\n');
  if (begin == std::string::npos) return "unknown error";
  return message.substr(begin, message.find('\n', begin) - begin);
}

// The config's special tokens. Each is a string, or an object whose `content` is one.
std::map<std::string, std::string> SpecialTokens(const Json& config) {
  std::map<std::string, std::string> tokens;
  for (const auto& [key, value] : config.items()) {
    if (!absl::EndsWith(key, "_token")) continue;
    const Json& token = value.is_object() && value.contains("content") ? value["content"] : value;
    if (token.is_string()) tokens[key] = token.get<std::string>();
  }
  return tokens;
}

// The config's `chat_template` if it is a string, or else the template called "default" in its list.
std::optional<std::string> TemplateOf(const Json& config) {
  const auto found = config.find("chat_template");
  if (found == config.end()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) return std::nullopt;
  for (const Json& named : *found) {
    if (named.is_object() && named.value("name", Json()) == "default" && named.contains("template") &&
        named["template"].is_string()) {
      return named["template"].get<std::string>();
    }
  }
  return std::nullopt;
}

// The special tokens of a GGUF file, whose metadata have their ids.
std::map<std::string, std::string> SpecialTokens(const GgufFile& file) {
  constexpr std::pair<const char*, const char*> kNames[] = {
      {"bos_token", "bos"}, {"eos_token", "eos"}, {"unk_token", "unknown"}, {"pad_token", "padding"}};
  const auto all = file.Value("tokenizer.ggml.tokens");
  std::map<std::string, std::string> tokens;
  for (const auto& [variable, name] : kNames) {
    const auto id = file.metadata().find(absl::StrCat("tokenizer.ggml.", name, "_token_id"));
    if (id == file.metadata().end() || !id->is_number_integer() || !all.is_array()) continue;
    const auto index = id->get<uint64_t>();
    if (index < all.size() && all[index].is_string()) tokens[variable] = all[index].get<std::string>();
  }
  return tokens;
}

// A message as a template reads it. Its role, which may go into control tokens, replaces any in `fields`.
absl::StatusOr<Json> MessageJson(const ChatMessage& message, bool in_parts) {
  Json json = Json::object();
  if (!message.fields.empty()) {
    json = OUTRIDER_TRY(ParseJson<Json>(message.fields));
    if (!json.is_object()) return Invalid("fields: not a JSON object");
  }
  json["role"] = message.role;
  if (!in_parts) {
    json["content"] = message.Text();
    return json;
  }
  json["content"] = Json::array();
  for (const std::string& part : message.parts) json["content"].push_back({{"type", "text"}, {"text", part}});
  return json;
}

void MarkContents(const jinja::value& messages) {
  for (const jinja::value& message : messages->val_arr) {
    for (const auto& [key, field] : message->val_obj) {
      if (key->val_str.str() != "role") MarkInput(field);
    }
  }
}

// Cuts the text after `message`, as transformers does: with its outer spaces if the template keeps them.
absl::Status CutBehind(const ChatMessage& message, RenderedChat* chat) {
  const std::string& content = message.parts.empty() ? message.content : message.parts.back();
  const absl::string_view words = absl::StripAsciiWhitespace(content);
  const size_t begin = chat->text.rfind(std::string(words));
  if (words.empty() || begin == std::string::npos) {
    return Invalid(words.empty() ? "the message to be continued has no text"
                                 : "the template does not write the message to be continued");
  }
  const bool keeps_spaces = absl::StartsWith(absl::string_view(chat->text).substr(begin), content);
  const size_t end = begin + (keeps_spaces ? content : words).size();
  chat->text.resize(end);
  std::erase_if(chat->content, [end](const AddedTokens::Range& range) { return range.begin >= end; });
  if (!chat->content.empty()) chat->content.back().end = std::min(chat->content.back().end, end);
  return absl::OkStatus();
}

RenderedChat Joined(const jinja::string& text) {
  RenderedChat joined;
  for (const jinja::string_part& part : text.parts) {
    const size_t begin = joined.text.size();
    joined.text += part.val;
    if (part.is_input && !part.val.empty()) joined.content.push_back({begin, joined.text.size()});
  }
  return joined;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const ChatTemplate>> ChatTemplate::Load(const std::string& model) {
  if (IsGguf(model)) return LoadGguf(model);
  const fs::path config_path = fs::path(model) / kConfigFile;
  const fs::path template_path = fs::path(model) / kTemplateFile;
  const Json config = OUTRIDER_TRY(JsonObjectIfThere<Json>(config_path.string()));
  std::error_code ignored;
  const bool own_file = fs::exists(template_path, ignored);
  std::optional<std::string> source = own_file ? ReadFile(template_path.string()) : TemplateOf(config);
  if (own_file && !source) return Invalid(template_path.string(), ": cannot be read, or is empty");
  if (!source) return std::unique_ptr<const ChatTemplate>();
  auto parsed = Parse(*std::move(source), SpecialTokens(config));
  if (parsed.ok()) return parsed;
  return absl::UnimplementedError(
      absl::StrCat((own_file ? template_path : config_path).string(), ": ", parsed.status().message()));
}

absl::StatusOr<std::unique_ptr<const ChatTemplate>> ChatTemplate::LoadGguf(const std::string& path) {
  const GgufFile file = OUTRIDER_TRY(GgufFile::Open(path));
  const auto source = file.metadata().find("tokenizer.chat_template");
  if (source == file.metadata().end()) return std::unique_ptr<const ChatTemplate>();
  if (!source->is_string()) return Invalid(path, ": tokenizer.chat_template: not a string");
  auto parsed = Parse(source->get<std::string>(), SpecialTokens(file));
  if (parsed.ok()) return parsed;
  return absl::UnimplementedError(absl::StrCat(path, ": ", parsed.status().message()));
}

absl::StatusOr<std::unique_ptr<const ChatTemplate>> ChatTemplate::Parse(
    std::string source, std::map<std::string, std::string> special_tokens) {
  source = WithItsFirstCharacter(std::move(source));
  try {
    ParseProgram(source);
  } catch (const std::exception& error) {
    return absl::UnimplementedError(absl::StrCat("chat_template: ", Reason(error.what())));
  }
  std::unique_ptr<ChatTemplate> result(new ChatTemplate);
  result->source_ = std::move(source);
  result->special_tokens_ = std::move(special_tokens);
  // Templates that do not read parts print the list as Python does, or raise an error.
  result->reads_parts_ = true;
  constexpr char kPart[] = "a part of a message";
  const auto tried = result->Render({.messages = {{"user", "", {kPart}}}}, 0);
  result->reads_parts_ = tried.ok() && absl::StrContains(tried->text, kPart) &&
                         !absl::StrContains(tried->text, "'text'") &&
                         !absl::StrContains(tried->text, "\"text\"");
  return result;
}

bool ChatTemplate::Mentions(absl::string_view word) const { return absl::StrContains(source_, word); }

absl::Status ChatTemplate::CheckVariables(const std::string& variables) {
  const Json json = OUTRIDER_TRY(ParseJson<Json>(variables));
  if (!json.is_object()) return Invalid("not a JSON object");
  for (const char* name : kOwnVariables) {
    if (json.contains(name)) return Invalid("a variable is called ", name);
  }
  return absl::OkStatus();
}

absl::StatusOr<RenderedChat> ChatTemplate::Render(const Conversation& chat, std::time_t now) const {
  Json variables = special_tokens_;
  Json further = chat.variables.empty() ? Json::object() : *ParseJson<Json>(chat.variables);
  variables.update(further);
  variables["messages"] = Json::array();
  variables["tools"] = chat.tools.empty() ? Json() : *ParseJson<Json>(chat.tools);
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = !chat.continue_final_message;
  for (const ChatMessage& message : chat.messages) {
    Json json = OUTRIDER_TRY(MessageJson(message, reads_parts_ && !message.parts.empty()));
    variables["messages"].push_back(std::move(json));
  }
  // Parses the template each time, in less than a millisecond: the engine changes a program while it runs.
  try {
    JinjaLimits limits;
    jinja::program program = ParseProgram(source_);
    limits.Bound(&program);
    jinja::context context;
    limits.Bound(&context);
    context.current_time = now;
    jinja::global_from_json(context, variables, /*mark_input=*/false);
    MarkContents(context.get_val("messages"));
    MarkInput(context.get_val("tools"));
    for (const auto& [name, value] : further.items()) MarkInput(context.get_val(name));
    const jinja::value result = jinja::runtime(context).execute(program);
    RenderedChat rendered = Joined(jinja::runtime::gather_string_parts(result)->as_string());
    if (chat.continue_final_message) OUTRIDER_TRY(CutBehind(chat.messages.back(), &rendered));
    return rendered;
  } catch (const std::exception& error) {
    return Invalid(Reason(error.what()));
  }
}

}  // namespace outrider
