#include "coordinator/api/chat_template.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/text/json.h"
#include "common/text/read_file.h"
#include "coordinator/api/jinja_limits.h"
#include "jinja/lexer.h"
#include "jinja/parser.h"
#include "jinja/runtime.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr char kConfigFile[] = "tokenizer_config.json";
constexpr char kTemplateFile[] = "chat_template.jinja";

absl::StatusOr<std::optional<std::string>> ReadIfThere(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  std::optional<std::string> content = ReadFile(path.string());
  if (!content) return absl::InvalidArgumentError(absl::StrCat(path.string(), ": cannot be read"));
  return content;
}

jinja::program ParseProgram(const std::string& source) {
  jinja::lexer lexer;
  const jinja::lexer_result tokens = lexer.tokenize(source);
  CheckTokens(source, tokens);
  return jinja::parse_from_tokens(tokens);
}

// The line that says what is wrong: the engine wraps it into what it was doing, and marks what a template
// raises itself.
std::string Reason(const std::string& message) {
  constexpr char kRaised[] = "Jinja Exception: ";
  const size_t raised = message.find(kRaised);
  if (raised != std::string::npos) return message.substr(raised + sizeof(kRaised) - 1);
  const size_t begin = message.find_first_not_of('\n');
  if (begin == std::string::npos) return "unknown error";
  return message.substr(begin, message.find('\n', begin) - begin);
}

// A special token is text, or an object whose `content` is.
std::map<std::string, std::string> SpecialTokens(const Json& config) {
  std::map<std::string, std::string> tokens;
  for (const auto& [key, value] : config.items()) {
    if (!absl::EndsWith(key, "_token")) continue;
    if (value.is_string()) tokens[key] = value.get<std::string>();
    if (value.is_object() && value.contains("content") && value["content"].is_string()) {
      tokens[key] = value["content"].get<std::string>();
    }
  }
  return tokens;
}

// Of a config's `chat_template`: the template, or that called "default" of a list of them.
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

}  // namespace

absl::StatusOr<std::unique_ptr<const ChatTemplate>> ChatTemplate::Load(const std::string& folder) {
  const fs::path config_path = fs::path(folder) / kConfigFile;
  const fs::path template_path = fs::path(folder) / kTemplateFile;
  auto config_text = ReadIfThere(config_path);
  if (!config_text.ok()) return config_text.status();
  auto source = ReadIfThere(template_path);
  if (!source.ok()) return source.status();

  Json config = Json::object();
  if (config_text->has_value()) {
    auto parsed = ParseJson<Json>(**config_text);
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(config_path.string(), ": ", parsed.status().message()));
    }
    config = *std::move(parsed);
    if (!config.is_object()) {
      return absl::InvalidArgumentError(absl::StrCat(config_path.string(), ": not a JSON object"));
    }
  }
  const bool own_file = source->has_value();
  if (!own_file) *source = TemplateOf(config);
  if (!source->has_value()) return std::unique_ptr<const ChatTemplate>();
  auto parsed = Parse(**std::move(source), SpecialTokens(config));
  if (parsed.ok()) return parsed;
  return absl::InvalidArgumentError(absl::StrCat((own_file ? template_path : config_path).string(), ": ",
                                                 std::string(parsed.status().message())));
}

absl::StatusOr<std::unique_ptr<const ChatTemplate>> ChatTemplate::Parse(
    std::string source, std::map<std::string, std::string> special_tokens) {
  try {
    ParseProgram(source);
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("chat_template: ", Reason(error.what())));
  }
  std::unique_ptr<ChatTemplate> result(new ChatTemplate);
  result->source_ = std::move(source);
  result->special_tokens_ = std::move(special_tokens);
  return result;
}

absl::StatusOr<std::string> ChatTemplate::Render(std::span<const ChatMessage> messages,
                                                 std::time_t now) const {
  Json variables = {{"messages", Json::array()},
                    {"tools", nullptr},
                    {"documents", nullptr},
                    {"add_generation_prompt", true}};
  for (const ChatMessage& message : messages) {
    variables["messages"].push_back({{"role", message.role}, {"content", message.content}});
  }
  for (const auto& [name, token] : special_tokens_) variables[name] = token;
  // Parsed each time: the engine changes a program while it runs, and an exception can leave it changed. It
  // costs less than a millisecond.
  try {
    JinjaLimits limits;
    jinja::program program = ParseProgram(source_);
    limits.Bound(&program);
    jinja::context context;
    limits.Bound(&context);
    context.current_time = now;
    jinja::global_from_json(context, variables, /*mark_input=*/false);
    const jinja::value result = jinja::runtime(context).execute(program);
    return jinja::runtime::gather_string_parts(result)->as_string().str();
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(Reason(error.what()));
  }
}

}  // namespace outrider
