// How a model wants conversations written out: the Jinja template that comes with its tokenizer.
#pragma once

#include <ctime>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace outrider {

struct ChatMessage {
  std::string role;
  std::string content;
};

// Immutable; any thread. Renders as Hugging Face transformers' apply_chat_template does, with
// add_generation_prompt and without tools.
class ChatTemplate {
 public:
  // What lies beside a tokenizer.json: chat_template.jinja, else `chat_template` of tokenizer_config.json (of
  // several the one called "default"). Null if there is neither. INVALID_ARGUMENT, naming the file, if one is
  // damaged.
  static absl::StatusOr<std::unique_ptr<const ChatTemplate>> Load(const std::string& folder);

  // `special_tokens` are variables of the template: "bos_token" and the like. INVALID_ARGUMENT if `source` is
  // no template.
  static absl::StatusOr<std::unique_ptr<const ChatTemplate>> Parse(
      std::string source, std::map<std::string, std::string> special_tokens);

  // The conversation up to where the assistant speaks, special tokens written out. `now` is for templates
  // that tell the model the date. INVALID_ARGUMENT, in the template's words, if it does not take the
  // conversation or goes beyond JinjaLimits.
  absl::StatusOr<std::string> Render(std::span<const ChatMessage> messages, std::time_t now) const;

 private:
  ChatTemplate() = default;

  std::string source_;
  std::map<std::string, std::string> special_tokens_;
};

}  // namespace outrider
