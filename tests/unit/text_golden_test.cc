// Agreement with Hugging Face's `tokenizers` on the goldens of scripts/goldens/text.py.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "tests/unit/text_testing.h"

namespace outrider {
namespace {

struct Golden {
  std::string input;
  bool special;
  std::vector<TokenId> ids;
  std::string decoded;
};

Golden ParseGolden(const std::string& line) {
  const nlohmann::json json = nlohmann::json::parse(line);
  Golden golden{.input = "", .special = json["special"], .ids = json["ids"], .decoded = ""};
  if (json.contains("text")) {
    golden.input = json["text"];
    golden.decoded = golden.input;
  } else {
    EXPECT_TRUE(absl::Base64Unescape(json["base64"].get<std::string>(), &golden.input));
    golden.decoded = LossyUtf8(golden.input);
  }
  if (json.contains("decoded")) golden.decoded = json["decoded"];
  return golden;
}

// `strips`: the decoder strips a leading space.
void ExpectAgreement(const std::string& tokenizer_path, const std::string& golden_path, bool strips = false) {
  const auto tokenizer = LoadTokenizer(tokenizer_path);
  ASSERT_NE(tokenizer, nullptr);
  std::istringstream lines(MustReadFile(golden_path));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const Golden golden = ParseGolden(line);
    EXPECT_EQ(tokenizer->Encode(golden.input, golden.special).value(), golden.ids) << line;
    EXPECT_EQ(tokenizer->Decode(golden.ids, golden.special), golden.decoded) << line;
    // A stream keeps the leading space that some decoders strip.
    std::string streamed = StreamedText(*tokenizer, golden.ids, golden.special);
    if (strips && streamed.starts_with(' ')) streamed.erase(0, 1);
    EXPECT_EQ(streamed, golden.decoded) << line;
  }
  EXPECT_GE(count, 200) << golden_path;
}

TEST(TokenizerGoldens, Gpt2RegexAgreesWithHuggingFace) {
  ExpectAgreement(kGpt2Small, "tests/data/text/gpt2-small.golden.jsonl");
}

TEST(TokenizerGoldens, EveryOptionAgreesWithHuggingFace) {
  ExpectAgreement(kOptions, "tests/data/text/options.golden.jsonl");
}

class Family : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(TokenizerGoldens, Family,
                         ::testing::Values("qwen", "mistral", "metaspace", "gemma", "unknown"),
                         [](const auto& info) { return info.param; });

TEST_P(Family, AgreesWithHuggingFace) {
  const std::string name = "tests/data/text/" + GetParam();
  const bool strips = GetParam() == "mistral" || GetParam() == "metaspace";
  ExpectAgreement(name + ".tokenizer.json", name + ".golden.jsonl", strips);
}

TEST(TokenizerGoldens, ShippedTokenizerAgreesWithHuggingFace) {
  ExpectAgreement("models/tiny-target/tokenizer.json", "tests/data/text/tiny-target.golden.jsonl");
}

}  // namespace
}  // namespace outrider
