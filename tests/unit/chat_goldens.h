// What transformers makes of conversations (scripts/goldens/chat.py).
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "coordinator/api/chat_template.h"

namespace outrider {

inline nlohmann::json ChatGoldens() {
  return nlohmann::json::parse(std::ifstream("tests/data/chat/goldens.json"));
}

// A conversation is a list of pairs: who speaks, and what is said.
inline std::vector<ChatMessage> Messages(const nlohmann::json& conversation) {
  std::vector<ChatMessage> messages;
  for (const nlohmann::json& message : conversation) messages.push_back({message[0], message[1]});
  return messages;
}

// What was rendered, or why not.
inline std::string TextOf(const absl::StatusOr<RenderedChat>& chat) {
  return chat.ok() ? chat->text : std::string(chat.status().message());
}

}  // namespace outrider
