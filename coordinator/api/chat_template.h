// The Jinja template that comes with a model's tokenizer and writes conversations out.
#pragma once

#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_join.h"
#include "common/text/added_tokens.h"

namespace outrider {

struct ChatMessage {
  std::string role;
  std::string content;
  std::vector<std::string> parts = {};  // if set, the content in several parts, instead of `content`
  std::string fields = "";  // a JSON object of further fields of the message for the template; empty: none

  // All of it, its parts joined with line ends.
  std::string Text() const { return parts.empty() ? content : absl::StrJoin(parts, "\n"); }
};

struct Conversation {
  std::vector<ChatMessage> messages = {};
  std::string variables = "";           // a JSON object of further variables of the template; empty: none
  std::string tools = "";               // a JSON array, the template's variable of that name; empty: none
  bool continue_final_message = false;  // the text ends with the last message, which has some
};

struct RenderedChat {
  std::string text;
  // The ranges that clients wrote, in order: they are text, whatever they look like.
  std::vector<AddedTokens::Range> content;
};

// Immutable; any thread. Renders as Hugging Face transformers' apply_chat_template does.
class ChatTemplate {
 public:
  // Loads the template of a model's folder: chat_template.jinja, else `chat_template` of
  // tokenizer_config.json (of several, the one called "default"); or that in a path which ends in .gguf. Null
  // if there is none. Errors name the file: INVALID_ARGUMENT if it is damaged, and that of Parse.
  static absl::StatusOr<std::unique_ptr<const ChatTemplate>> Load(const std::string& model);

  // `special_tokens` are variables: "bos_token" and so on. UNIMPLEMENTED if it is no supported template.
  static absl::StatusOr<std::unique_ptr<const ChatTemplate>> Parse(
      std::string source, std::map<std::string, std::string> special_tokens);

  // Whether the word occurs in the template. A template knows no role that it does not mention.
  bool Mentions(absl::string_view word) const;

  // INVALID_ARGUMENT unless a conversation may have these variables.
  static absl::Status CheckVariables(const std::string& variables);

  // Renders the conversation up to where the assistant speaks, with special tokens written out. The variables
  // were checked. `now` is for templates that tell the date. INVALID_ARGUMENT, in the template's words, if it
  // refuses the conversation, exceeds JinjaLimits, or does not write the message to be continued.
  absl::StatusOr<RenderedChat> Render(const Conversation& chat, std::time_t now) const;

 private:
  ChatTemplate() = default;
  static absl::StatusOr<std::unique_ptr<const ChatTemplate>> LoadGguf(const std::string& path);

  std::string source_;
  bool reads_parts_ = false;  // reads the parts of a content; else they are joined with line ends, as in vLLM
  std::map<std::string, std::string> special_tokens_;
};

}  // namespace outrider
