// The texts that transformers renders from conversations (scripts/goldens/chat.py).
#pragma once

#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/text/strings.h"
#include "coordinator/api/chat_template.h"

namespace outrider {

inline nlohmann::json ChatGoldens() {
  return nlohmann::json::parse(std::ifstream("tests/data/chat/goldens.json"));
}

// A conversation is a list of pairs of a role and a content.
inline std::vector<ChatMessage> Messages(const nlohmann::json& conversation) {
  std::vector<ChatMessage> messages;
  for (const nlohmann::json& message : conversation) messages.push_back({message[0], message[1]});
  return messages;
}

// The rendered text, or the error.
inline std::string TextOf(const absl::StatusOr<RenderedChat>& chat) {
  return chat.ok() ? chat->text : std::string(chat.status().message());
}

// A model's published template. CMake defines OUTRIDER_CHAT_TEMPLATES, where scripts/install unpacks them.
inline std::string PublishedSource(const std::string& name) {
  const std::string path = absl::StrCat(OUTRIDER_CHAT_TEMPLATES, "/", name, ".jinja");
  const std::optional<std::string> source = ReadFile(path);
  EXPECT_TRUE(source) << path << " is missing: run scripts/install";
  return source.value_or("");
}

inline std::string Sha256(const std::string& text) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return absl::BytesToHexString(digest);
}

}  // namespace outrider
