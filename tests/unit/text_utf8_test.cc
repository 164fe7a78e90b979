#include "common/text/utf8.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/unit/text_testing.h"

namespace outrider {
namespace {

// Bytes on both sides of each border of the valid characters (Unicode 15, table 3-7).
TEST(IsValidUtf8, KnowsTheBordersOfWhatIsACharacter) {
  for (const char* valid :
       {"", "\x7F", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80", "\xEF\xBF\xBF",
        "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF", "a\xC2\x80z"}) {
    EXPECT_TRUE(IsValidUtf8(valid)) << ::testing::PrintToString(valid);
  }
  for (const char* invalid : {"\x80", "\xBF", "\xC1\xBF", "\xC2\x7F", "\xC2\xC0", "\xC2", "\xE0\x9F\xBF",
                              "\xED\xA0\x80", "\xED\xBF\xBF", "\xE1\x80", "\xE1\x80\x7F", "\xF0\x8F\xBF\xBF",
                              "\xF4\x90\x80\x80", "\xF1\x80\x80", "\xF5\x80\x80\x80", "\xFF", "a\xC2"}) {
    EXPECT_FALSE(IsValidUtf8(invalid)) << ::testing::PrintToString(invalid);
  }
}

TEST(LossyUtf8, ReplacesEachMaximalIllFormedSubsequenceOnce) {
  EXPECT_EQ(LossyUtf8("plain \u00e9\u4e2d\U0001F600"), "plain \u00e9\u4e2d\U0001F600");
  EXPECT_EQ(LossyUtf8("a\x80z"), "a\uFFFDz");
  EXPECT_EQ(LossyUtf8("\xE2\x82"), "\uFFFD");                            // Cut short.
  EXPECT_EQ(LossyUtf8("\xE2\x82z"), "\uFFFDz");                          // Interrupted.
  EXPECT_EQ(LossyUtf8("\xC0\xAF"), "\uFFFD\uFFFD");                      // Overlong.
  EXPECT_EQ(LossyUtf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");            // A surrogate.
  EXPECT_EQ(LossyUtf8("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");  // Beyond U+10FFFF.
  EXPECT_EQ(LossyUtf8("\xF0\x9F\x98\xF0\x9F\x98\x80"), "\uFFFD\U0001F600");
}

TEST(LossyUtf8, LeavesValidTextAloneAndMakesAllTextValid) {
  std::mt19937 random(3);
  for (int i = 0; i < 3000; ++i) {
    const std::string bytes = RandomBytes(random);
    EXPECT_TRUE(IsValidUtf8(LossyUtf8(bytes)));
    EXPECT_EQ(IsValidUtf8(bytes), LossyUtf8(bytes) == bytes);
  }
}

TEST(LossyUtf8Stream, GivesTheSameWhereverTheBytesAreCut) {
  std::mt19937 random(4);
  for (int i = 0; i < 3000; ++i) {
    const std::string bytes = RandomBytes(random);
    LossyUtf8Stream stream;
    std::string text;
    for (size_t begin = 0; begin < bytes.size();) {
      const size_t size = random() % 4;
      stream.Append(std::string_view(bytes).substr(begin, size), &text);
      EXPECT_TRUE(IsValidUtf8(text));
      begin += size;
    }
    stream.Finish(&text);
    EXPECT_EQ(text, LossyUtf8(bytes));
  }
}

TEST(StreamingDetokenizer, ReleasesACharacterWithItsLastByte) {
  const auto tokenizer = LoadTokenizer(kGpt2Small);
  const std::vector<TokenId> tokens = tokenizer->Encode("\U0001F600", false).value();
  ASSERT_EQ(tokens.size(), 4);
  StreamingDetokenizer detokenizer(tokenizer.get(), true);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(detokenizer.Append(tokens[i]), "");
  EXPECT_EQ(detokenizer.Append(tokens[3]), "\U0001F600");
  EXPECT_EQ(detokenizer.Flush(), "");
}

TEST(StreamingDetokenizer, ReplacesACharacterThatIsNeverCompleted) {
  const auto tokenizer = LoadTokenizer(kGpt2Small);
  const std::vector<TokenId> tokens = tokenizer->Encode("\U0001F600", false).value();
  StreamingDetokenizer detokenizer(tokenizer.get(), true);
  EXPECT_EQ(detokenizer.Append(tokens[0]), "");
  EXPECT_EQ(detokenizer.Append(*tokenizer->TokenToId("a")), "\uFFFDa");
  EXPECT_EQ(detokenizer.Append(tokens[0]), "");
  EXPECT_EQ(detokenizer.Flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.Flush(), "");
}

TEST(StreamingDetokenizer, JoinedOutputIsTheDecodedText) {
  for (const char* path : {kGpt2Small, kOptions}) {
    const auto tokenizer = LoadTokenizer(path);
    std::mt19937 random(5);
    for (int i = 0; i < 2000; ++i) {
      std::vector<TokenId> tokens(random() % 50);
      // Half of them single bytes, which rarely form characters.
      for (TokenId& token : tokens) {
        token = static_cast<TokenId>(random() % (random() % 2 ? 260 : tokenizer->vocab_size() + 5));
      }
      const bool skip = random() % 2;
      EXPECT_EQ(StreamedText(*tokenizer, tokens, skip), tokenizer->Decode(tokens, skip));
    }
  }
}

}  // namespace
}  // namespace outrider
