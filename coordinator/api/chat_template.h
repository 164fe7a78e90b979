// How a model wants conversations written out: the Jinja template that comes with its tokenizer.
#pragma once

#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/text/added_tokens.h"

namespace outrider {

struct ChatMessage {
  std::string role;
  std::string content;
  // Set: the content in several parts, instead of `content`.
  std::vector<std::string> parts = {};
  // A JSON object of what else a template may read of the message; empty: none.
  std::string fields = "";
};

struct Conversation {
  std::vector<ChatMessage> messages = {};
  // A JSON object of further variables of the template; empty: none.
  std::string variables = "";
  // The text ends with the last message, which has some.
  bool continue_final_message = false;
};

struct RenderedChat {
  std::string text;
  // What of it clients wrote, in order: it is text, whatever it looks like.
  std::vector<AddedTokens::Range> content;
};

// Immutable; any thread. Renders as Hugging Face transformers' apply_chat_template does, without tools.
class ChatTemplate {
 public:
  // What lies beside a tokenizer.json: chat_template.jinja, else `chat_template` of tokenizer_config.json (of
  // several the one called "default"). Null if there is neither. Errors name the file: INVALID_ARGUMENT if it
  // is damaged, and that of Parse.
  static absl::StatusOr<std::unique_ptr<const ChatTemplate>> Load(const std::string& folder);

  // `special_tokens` are variables of the template: "bos_token" and the like. UNIMPLEMENTED if `source` is
  // no template, or has something that is not supported.
  static absl::StatusOr<std::unique_ptr<const ChatTemplate>> Parse(
      std::string source, std::map<std::string, std::string> special_tokens);

  // Whether the word is anywhere in it. It knows no role that it does not mention.
  bool Mentions(absl::string_view word) const;

  // INVALID_ARGUMENT unless they are variables that a conversation may have.
  static absl::Status CheckVariables(const std::string& variables);

  // The conversation up to where the assistant speaks, special tokens written out. Its variables were
  // checked. `now` is for templates that tell the model the date. INVALID_ARGUMENT, in the template's words,
  // if it does not take the conversation or goes beyond JinjaLimits, or does not write the message that is to
  // be continued.
  absl::StatusOr<RenderedChat> Render(const Conversation& chat, std::time_t now) const;

 private:
  ChatTemplate() = default;

  std::string source_;
  bool reads_parts_ = false;  // of a content; else they are joined with line ends, as in vLLM
  std::map<std::string, std::string> special_tokens_;
};

}  // namespace outrider
