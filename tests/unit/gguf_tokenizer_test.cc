// Tokenizers of published models, whose vocabularies are in llama.cpp's sources, with the ids of Hugging
// Face's tokenizers (.out). Those for Llama 3 are in tests/data/text (scripts/goldens/llama3.py).
#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/unit/some_of.h"
#include "tests/unit/text_testing.h"

namespace outrider {
namespace {

// CMake defines OUTRIDER_VOCABULARIES, where scripts/install unpacks them.
std::string VocabularyFile(const std::string& name) {
  return absl::StrCat(OUTRIDER_VOCABULARIES, "/ggml-vocab-", name, ".gguf");
}

struct Question {
  std::string text;
  std::vector<TokenId> answer;
};

std::vector<Question> QuestionsOf(const std::string& name) {
  constexpr char kBetween[] = "\n__ggml_vocab_test__\n";
  std::vector<std::string> texts = absl::StrSplit(MustReadFile(VocabularyFile(name) + ".inp"), kBetween);
  std::vector<std::string> answers = absl::StrSplit(MustReadFile(VocabularyFile(name) + ".out"), '\n');
  answers.pop_back();  // the empty rest after the last line end
  EXPECT_GE(texts.size(), answers.size());
  std::vector<Question> questions;
  for (size_t i = 0; i < answers.size(); ++i) {
    std::istringstream words(answers[i]);
    questions.push_back({texts[i], {}});
    for (TokenId token; words >> token;) questions.back().answer.push_back(token);
  }
  return questions;
}

class Vocabulary : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(GgufTokenizer, Vocabulary,
                         ::testing::Values("command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4",
                                           "gpt-2", "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2",
                                           "qwen35", "refact", "starcoder"));

// Under a sanitizer the large ones take a minute, and they are read in the same way.
bool IsTooLarge(const std::string& name) {
  return SomeOf(10) < 10 && std::filesystem::file_size(VocabularyFile(name)) > 2'500'000;
}

TEST_P(Vocabulary, AgreesWithHuggingFace) {
  if (IsTooLarge(GetParam())) GTEST_SKIP();
  const auto tokenizer = LoadTokenizer(VocabularyFile(GetParam()));
  ASSERT_NE(tokenizer, nullptr);
  const std::vector<Question> questions = QuestionsOf(GetParam());
  EXPECT_GE(questions.size(), 46u);
  for (const Question& question : questions) {
    // For Qwen 3.5, the ids of decomposed characters are llama.cpp's own, which does not compose them.
    const bool has_parts =
        absl::StrContains(question.text, "\u0301") || absl::StrContains(question.text, "\u0300");
    if (has_parts && GetParam() == std::string("qwen35")) continue;
    EXPECT_EQ(tokenizer->Encode(question.text, false).value(), question.answer) << question.text;
  }
}

TEST(GgufTokenizer, OfQwen35ComposesCharactersAsHuggingFaceDoes) {
  if (IsTooLarge("qwen35")) GTEST_SKIP();
  const auto tokenizer = LoadTokenizer(VocabularyFile("qwen35"));
  const std::vector<TokenId> tokens = tokenizer->Encode("re\u0301sume\u0301", false).value();
  EXPECT_EQ(tokens, tokenizer->Encode("r\u00e9sum\u00e9", false).value());
  EXPECT_EQ(tokenizer->Decode(tokens, false), "r\u00e9sum\u00e9");
}

TEST(GgufTokenizer, OfAVocabularyWithoutGoldensWritesTheTextBack) {
  const std::string prose = MustReadFile("tests/data/text/blake-poems.txt").substr(0, 6000);
  for (const char* name : {"aquila", "baichuan", "gpt-neox"}) {
    if (IsTooLarge(name)) continue;
    const auto tokenizer = LoadTokenizer(VocabularyFile(name));
    const std::vector<TokenId> tokens = tokenizer->Encode(prose, false).value();
    EXPECT_LT(tokens.size(), 2500u) << name;
    EXPECT_EQ(tokenizer->Decode(tokens, false), prose) << name;
  }
}

TEST(GgufTokenizer, OfAnotherKindIsRefusedByName) {
  for (const auto& [name, model] : {std::pair("bert-bge", "bert"), std::pair("nomic-bert-moe", "t5")}) {
    const auto tokenizer = Tokenizer::Load(VocabularyFile(name));
    EXPECT_EQ(tokenizer.status(),
              absl::InvalidArgumentError(absl::StrCat(VocabularyFile(name), ": tokenizer.ggml.model: \"",
                                                      model, "\" is not supported")));
  }
}

// Texts made of pieces that the splits treat differently, and of any characters. scripts/goldens/llama3.py
// makes the same texts.
class AnyTexts {
 public:
  std::string Next() {
    static constexpr int kLengths[] = {1, 4, 16, 48};
    std::string text;
    for (int left = Pick(kLengths); left > 0; --left) {
      if (random_() % 2 == 0) {
        text += Pick(kPieces);
      } else {
        const auto [first, last] = Pick(kRanges);
        AppendCharacter(first + random_() % (last - first + 1), &text);
      }
    }
    return text;
  }

 private:
  static constexpr std::string_view kPieces[] = {"'s",      "'LL",        "'ve",
                                                 "'\u017f", " ",          "  ",
                                                 "\n",      "\r\n",       "\t",
                                                 " \n",     "\u0085",     "\u00a0",
                                                 "\u180e",  "\u200d",     "\u3000",
                                                 "\ufe0f",  "\u0301",     "123",
                                                 "4567",    ".",          "...",
                                                 "!",       "\"",         "the",
                                                 " and",    "Hello",      " world",
                                                 "ing",     "_",          "<|",
                                                 "|>",      "<|eot_id|>", "<|begin_of_text|>"};
  static constexpr std::pair<uint32_t, uint32_t> kRanges[] = {
      {0x21, 0x7E},    {0x41, 0x7A},     {0xA0, 0x24F},    {0x300, 0x36F},   {0x370, 0x7FF},
      {0x900, 0x1FFF}, {0x2000, 0x2FFF}, {0x3040, 0x9FFF}, {0xAC00, 0xD7A3}, {0x10000, 0x10FFFF}};

  template <class T, size_t kSize>
  const T& Pick(const T (&list)[kSize]) {
    return list[random_() % kSize];
  }

  static void AppendCharacter(uint32_t code, std::string* text) {
    const auto append = [text](uint32_t byte) { text->push_back(static_cast<char>(byte)); };
    const int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    append(more == 0 ? code : (0xFF00 >> (more + 1) & 0xFF) | code >> 6 * more);
    for (int i = more - 1; i >= 0; --i) append(0x80 | (code >> 6 * i & 0x3F));
  }

  std::mt19937 random_{3};
};

// FNV-1a over ids, with a number that is no id after each text.
uint64_t HashOfIds(const std::vector<std::vector<TokenId>>& texts) {
  uint64_t hash = 0xCBF29CE484222325;
  const auto add = [&hash](uint32_t number) { hash = (hash ^ number) * 0x100000001B3; };
  for (const std::vector<TokenId>& tokens : texts) {
    for (const TokenId token : tokens) add(static_cast<uint32_t>(token));
    add(0xFFFFFFFF);
  }
  return hash;
}

TEST(GgufTokenizer, OfLlama3AgreesWithHuggingFaceOnAHundredThousandRandomTexts) {
  const auto tokenizer = LoadTokenizer(VocabularyFile("llama-bpe"));
  ASSERT_NE(tokenizer, nullptr);
  std::istringstream hashes(MustReadFile("tests/data/text/llama3.hashes"));
  std::string hash;
  ASSERT_TRUE(std::getline(hashes, hash));
  const std::string prose = MustReadFile("tests/data/text/blake-poems.txt");
  EXPECT_EQ(absl::StrCat(absl::Hex(HashOfIds({tokenizer->Encode(prose, true).value()}))), hash) << "prose";
  AnyTexts any;
  for (int thousand = 0; thousand < SomeOf(100); ++thousand) {
    ASSERT_TRUE(std::getline(hashes, hash));
    std::vector<std::vector<TokenId>> encoded;
    for (int i = 0; i < 1000; ++i) encoded.push_back(tokenizer->Encode(any.Next(), true).value());
    EXPECT_EQ(absl::StrCat(absl::Hex(HashOfIds(encoded))), hash) << "the texts from " << 1000 * thousand;
  }
}

}  // namespace
}  // namespace outrider
