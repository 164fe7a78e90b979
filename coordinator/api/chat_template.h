// The Jinja template that comes with a model's tokenizer and renders conversations into prompts.
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
  std::vector<std::string> parts = {};  // if set, the content in parts, instead of `content`
  std::string fields = "";  // a JSON object with the message's further fields for the template; empty: none

  // The whole content, with its parts joined by line ends.
  std::string Text() const { return parts.empty() ? content : absl::StrJoin(parts, "\n"); }
};

struct Conversation {
  std::vector<ChatMessage> messages = {};
  std::string variables = "";           // a JSON object with further variables for the template; empty: none
  std::string tools = "";               // a JSON array for the template's variable `tools`; empty: none
  bool continue_final_message = false;  // the prompt ends with the last message, which has text
};

struct RenderedChat {
  std::string text;
  // The ranges that clients wrote, in order. They are plain text even where they look like control tokens.
  std::vector<AddedTokens::Range> content;
};

// Immutable and thread-safe. Renders as Hugging Face transformers' apply_chat_template does.
class ChatTemplate {
 public:
  // Loads a model's template. A folder has it in chat_template.jinja, or else in tokenizer_config.json under
  // `chat_template`; if that is a list, takes the template called "default". A path that ends in .gguf has it
  // in its metadata. Null if there is none. Errors name the file: INVALID_ARGUMENT if damaged, or Parse's.
  static absl::StatusOr<std::unique_ptr<const ChatTemplate>> Load(const std::string& model);

  // `special_tokens` are template variables such as "bos_token". UNIMPLEMENTED if `source` is not supported.
  static absl::StatusOr<std::unique_ptr<const ChatTemplate>> Parse(
      std::string source, std::map<std::string, std::string> special_tokens);

  // Whether the word occurs in the template. A template knows no role that it does not mention.
  bool Mentions(absl::string_view word) const;

  // INVALID_ARGUMENT unless `variables` is valid as Conversation.variables.
  static absl::Status CheckVariables(const std::string& variables);

  // Renders the conversation up to where the assistant speaks, with special tokens written out. The variables
  // and tools must have been checked. Templates may write the date, `now`. INVALID_ARGUMENT if the template
  // refuses the conversation, in its own words, exceeds JinjaLimits, or omits the message to be continued.
  absl::StatusOr<RenderedChat> Render(const Conversation& chat, std::time_t now) const;

 private:
  ChatTemplate() = default;
  static absl::StatusOr<std::unique_ptr<const ChatTemplate>> LoadGguf(const std::string& path);

  std::string source_;
  bool reads_parts_ = false;  // the template reads parts; else line ends join them, as in vLLM
  std::map<std::string, std::string> special_tokens_;
};

}  // namespace outrider
