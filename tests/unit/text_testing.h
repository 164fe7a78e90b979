// Helpers of the tests of common/text. Paths are relative to the repository's root, where tests run.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/text/strings.h"
#include "common/text/tokenizer.h"

namespace outrider {

inline constexpr char kGpt2Small[] = "tests/data/text/gpt2-small.tokenizer.json";
inline constexpr char kOptions[] = "tests/data/text/options.tokenizer.json";

// The content of a file that must exist and not be empty.
inline std::string MustReadFile(const std::string& path) {
  std::optional<std::string> content = ReadFile(path);
  EXPECT_TRUE(content) << path;
  return std::move(content).value_or("");
}

inline std::unique_ptr<Tokenizer> LoadTokenizer(const std::string& path) {
  auto tokenizer = Tokenizer::Load(path);
  if (!tokenizer.ok()) {
    ADD_FAILURE() << tokenizer.status();
    return nullptr;
  }
  return *std::move(tokenizer);
}

// The concatenated output of a stream that gets `tokens` one at a time.
inline std::string StreamedText(const Tokenizer& tokenizer, const std::vector<TokenId>& tokens,
                                bool skip_special_tokens) {
  StreamingDetokenizer detokenizer(&tokenizer, skip_special_tokens);
  std::string text;
  for (const TokenId token : tokens) text += detokenizer.Append(token);
  return text + detokenizer.Flush();
}

// Bytes that are often almost UTF-8: characters, parts of characters, and bytes that never occur in one.
inline std::string RandomBytes(std::mt19937& random) {
  static constexpr std::string_view kPieces[] = {
      "a",      "The",      " ",        "\n",   "'s",   "12",       "\u00e9", "\u4e2d",   "\U0001F600",
      "\u0301", "\xE2\x82", "\xF0\x9F", "\x80", "\xC0", "\xED\xA0", "\xFF",   "\xF4\x90", "\xE0\x80"};
  std::string bytes;
  const size_t count = random() % 40;
  for (size_t i = 0; i < count; ++i) {
    if (random() % 4 == 0) {
      bytes.push_back(static_cast<char>(random() % 256));
    } else {
      bytes += kPieces[random() % std::size(kPieces)];
    }
  }
  return bytes;
}

}  // namespace outrider
