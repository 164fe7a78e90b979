#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/some_of.h"
#include "tests/unit/text_testing.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;

TEST(Tokenizer, DecodingWhatWasEncodedGivesTheTextBack) {
  const auto tokenizer = LoadTokenizer(kGpt2Small);
  std::mt19937 random(1);
  for (int i = 0; i < SomeOf(3000); ++i) {
    const std::string bytes = RandomBytes(random);
    const std::vector<TokenId> tokens = tokenizer->Encode(bytes, false).value();
    EXPECT_EQ(tokenizer->Decode(tokens, false), LossyUtf8(bytes));
  }
}

TEST(Tokenizer, EveryTokenIsItsBytes) {
  const auto tokenizer = LoadTokenizer(kGpt2Small);
  for (TokenId token = 0; token < tokenizer->vocab_size(); ++token) {
    const TokenId tokens[] = {token};
    EXPECT_EQ(tokenizer->Decode(tokens, false), LossyUtf8(tokenizer->TokenBytes(token))) << token;
    EXPECT_FALSE(tokenizer->TokenBytes(token).empty()) << token;
  }
}

TEST(Tokenizer, TokensAreFoundAsTheFileWritesThem) {
  const auto tokenizer = LoadTokenizer(kGpt2Small);
  const std::optional<TokenId> token = tokenizer->TokenToId("Ġthe");
  ASSERT_TRUE(token.has_value());
  EXPECT_EQ(tokenizer->TokenBytes(*token), " the");
  EXPECT_EQ(tokenizer->TokenToId("<|endoftext|>"), 0);
  EXPECT_EQ(tokenizer->TokenToId(" the"), std::nullopt);
}

TEST(Tokenizer, IdsOutsideTheVocabularyAddNothing) {
  const auto tokenizer = LoadTokenizer(kGpt2Small);
  const TokenId tokens[] = {-1, *tokenizer->TokenToId("a"), tokenizer->vocab_size(), 1 << 30};
  EXPECT_EQ(tokenizer->Decode(tokens, false), "a");
  EXPECT_EQ(tokenizer->TokenBytes(-1), "");
  EXPECT_FALSE(tokenizer->IsSpecial(tokenizer->vocab_size()));
}

TEST(Tokenizer, SpecialTokensAreAddedAndSkippedOnRequest) {
  const auto tokenizer = LoadTokenizer(kOptions);
  const TokenId bos = *tokenizer->TokenToId("<bos>");
  const TokenId eos = *tokenizer->TokenToId("<eos>");
  EXPECT_TRUE(tokenizer->IsSpecial(bos));
  EXPECT_FALSE(tokenizer->IsSpecial(*tokenizer->TokenToId("<plain>")));
  EXPECT_THAT(tokenizer->Encode("", true).value(), ElementsAre(bos, eos));
  EXPECT_THAT(tokenizer->Encode("", false).value(), ElementsAre());
  const std::vector<TokenId> tokens = tokenizer->Encode("x<bos>y", true).value();
  EXPECT_EQ(tokenizer->Decode(tokens, false), "<bos> x<bos> y<eos>");
  EXPECT_EQ(tokenizer->Decode(tokens, true), " x y");
}

// These tests finish only because no step takes quadratic time.
class TokenizerWithOneLongWord : public ::testing::TestWithParam<std::string> {};

TEST_P(TokenizerWithOneLongWord, Ends) {
  const size_t bytes = static_cast<size_t>(SomeOf(1 << 20));
  std::string text;
  while (text.size() < bytes) text += GetParam();
  for (const char* path : {kGpt2Small, kOptions}) {
    const auto tokenizer = LoadTokenizer(path);
    const std::vector<TokenId> tokens = tokenizer->Encode(text + "x", false).value();
    EXPECT_GT(tokens.size(), 1000);
    if (path == kGpt2Small) {
      EXPECT_EQ(tokenizer->Decode(tokens, false), LossyUtf8(text + "x"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Text, TokenizerWithOneLongWord,
                         ::testing::Values("a", " ", "\n", " \n", "th", "1", "!", "\u4e2d", "\xFF", "<",
                                           "<plain", "  <left>", "<right>  "));

TEST(Tokenizer, ThreadsShareIt) {
  const auto tokenizer = LoadTokenizer(kGpt2Small);
  const std::string prose = MustReadFile("tests/data/text/blake-poems.txt");
  const std::vector<TokenId> expected = LoadTokenizer(kGpt2Small)->Encode(prose, false).value();
  std::vector<std::vector<TokenId>> results(4);
  std::vector<std::thread> threads;
  for (std::vector<TokenId>& result : results) {
    threads.emplace_back([&] { result = tokenizer->Encode(prose, false).value(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<TokenId>& result : results) EXPECT_EQ(result, expected);
}

// The text has more distinct words than the cache holds.
TEST(Tokenizer, AnswersTheSameWhenTheWordCacheOverflows) {
  const auto tokenizer = LoadTokenizer(kGpt2Small);
  std::string words;
  for (int i = 0; i < 50000; ++i) {
    words += ' ';
    for (int rest = i; rest > 0; rest /= 26) words += static_cast<char>('a' + rest % 26);
  }
  const std::vector<TokenId> first = tokenizer->Encode(words, false).value();
  EXPECT_EQ(tokenizer->Encode(words, false).value(), first);
  EXPECT_EQ(tokenizer->Decode(first, false), words);
}

// With this, a coordinator refuses a text that no context has room for before it splits the text.
TEST(Tokenizer, KnowsHowMuchTextATokenStandsForUnlessTextIsLeftOut) {
  const auto longest = [](const std::string& name) {
    return LoadTokenizer("tests/data/text/" + name + ".tokenizer.json")->max_token_bytes();
  };
  EXPECT_GT(longest("gpt2-small"), 1u);
  EXPECT_GT(longest("mistral"), 1u);
  EXPECT_EQ(longest("options"), std::nullopt) << "it drops dashes";
  EXPECT_EQ(*longest("qwen") % 3, 0u) << "it composes characters";
  EXPECT_EQ(longest("unknown"), std::nullopt) << "a token stands for any number of unknown characters";
}

// One run of combining characters. In time quadratic in its length this would take minutes.
TEST(Tokenizer, ALongRunOfAccentsIsComposedInOrder) {
  const auto tokenizer = LoadTokenizer("tests/data/text/qwen.tokenizer.json");
  std::string text = "e", composed = "\u00e9";  // the first acute is composed with the letter
  constexpr int kCount = 200'000;
  for (int i = 0; i < kCount; ++i) text += "\u0301\u0316";
  for (int i = 0; i < kCount; ++i) composed += "\u0316";  // of a lower class, so they come first
  for (int i = 1; i < kCount; ++i) composed += "\u0301";
  EXPECT_EQ(tokenizer->Decode(*tokenizer->Encode(text, false), false), composed);
}

// The texts of single tokens have the leading spaces that Decode may strip.
TEST(Tokenizer, TheTextsOfTokensAddUpToTheText) {
  for (const char* name : {"mistral", "metaspace", "gemma", "qwen"}) {
    const auto tokenizer = LoadTokenizer(absl::StrCat("tests/data/text/", name, ".tokenizer.json"));
    std::string shown;
    const std::vector<TokenId> tokens = *tokenizer->Encode("Tyger Tyger, burning bright", false);
    for (const TokenId token : tokens) {
      shown += tokenizer->TokenText(token);
    }
    EXPECT_TRUE(shown == "Tyger Tyger, burning bright" || shown == " Tyger Tyger, burning bright") << shown;
  }
}

}  // namespace
}  // namespace outrider
