// Loading of tokenizer files: unsupported ones are refused by name, the others are hashed to a fingerprint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/unit/some_of.h"
#include "tests/unit/text_testing.h"

namespace outrider {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::json;

// gpt2-small with one change.
Json Changed(const std::function<void(Json&)>& change) {
  Json json = Json::parse(MustReadFile(kGpt2Small));
  change(json);
  return json;
}

std::string ParseError(const std::string& content) {
  const auto tokenizer = Tokenizer::Parse(content, "t.json");
  if (tokenizer.ok()) return "none";
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(tokenizer.status().message());
}

std::string ErrorAfter(const std::function<void(Json&)>& change) {
  return ParseError(Changed(change).dump());
}

uint64_t FingerprintAfter(const std::function<void(Json&)>& change) {
  const auto tokenizer = Tokenizer::Parse(Changed(change).dump(), "t.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? (*tokenizer)->Fingerprint() : 0;
}

const std::function<void(Json&)> kNoChange = [](Json&) {};

std::function<void(Json&)> Turned(const char* flag) {
  return [flag](Json& json) {
    Json& value = json["added_tokens"][0][flag];
    value = !value.get<bool>();
  };
}

TEST(TokenizerFile, MissingFileIsNamed) {
  for (const char* path : {"no/such/tokenizer.json", "tests/data"}) {
    const auto tokenizer = Tokenizer::Load(path);
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(tokenizer.status().message()), StartsWith(std::string(path) + ": "));
  }
}

TEST(TokenizerFile, DamagedFileIsRefusedWithOneLine) {
  const std::string content = MustReadFile(kGpt2Small);
  for (const std::string& damaged :
       {std::string(), std::string("{}"), std::string("[1]"), std::string("null"),
        content.substr(0, content.size() / 2), std::string(1'000'000, '[')}) {
    EXPECT_THAT(ParseError(damaged), AllOf(StartsWith("t.json: "), Not(HasSubstr("\n"))));
  }
}

// If each token were compared with all others, reading this many would take longer than a test may.
TEST(TokenizerFile, ManyAddedTokensAreRead) {
  const int tokens = SomeOf(64'000);
  int first = 0;
  const Json changed = Changed([&first, tokens](Json& json) {
    Json added = json["added_tokens"][0];
    first = static_cast<int>(json["model"]["vocab"].size()) + static_cast<int>(json["added_tokens"].size());
    for (int i = 0; i < tokens; ++i) {
      added["id"] = first + i;
      added["content"] = "<|s_" + std::to_string(i) + "|>";
      json["added_tokens"].push_back(added);
    }
  });
  const auto tokenizer = Tokenizer::Parse(changed.dump(), "t.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(
      *(*tokenizer)->Encode(absl::StrCat("<|s_0|><|s_", tokens - 1, "|>"), /*add_special_tokens=*/false),
      ::testing::ElementsAre(first, first + tokens - 1));
}

// Sequences of Sequences, whose parsing would nest one call inside another.
TEST(TokenizerFile, SequencesThatNestDeepAreRefused) {
  std::string content = Changed([](Json& json) { json.erase("pre_tokenizer"); }).dump();
  std::string nested = R"({"type":"ByteLevel","add_prefix_space":false})";
  std::string before, after;
  for (int i = 0; i < 100'000; ++i) {
    before += R"({"type":"Sequence","pretokenizers":[)";
    after += "]}";
  }
  content.insert(1, R"("pre_tokenizer":)" + before + nested + after + ",");
  EXPECT_EQ(ParseError(content), "t.json: JSON that nests more than 64 deep");
}

// Damages each byte in turn: the result is an error or a tokenizer, never a crash.
TEST(TokenizerFile, AnyChangedByteIsSurvived) {
  const std::string content = MustReadFile(kOptions);
  std::mt19937 random(2);
  for (int i = 0; i < 500; ++i) {
    std::string damaged = content;
    damaged[random() % damaged.size()] = static_cast<char>(random() % 256);
    const auto tokenizer = Tokenizer::Parse(damaged, "t.json");
    if (tokenizer.ok()) (*tokenizer)->Encode("Some <word> text", true).status().IgnoreError();
  }
}

struct Refusal {
  std::string pointer;  // Where in the file (a JSON pointer) ...
  Json value;           // ... this value is put ...
  std::string message;  // ... and what the error then says.
};

class TokenizerFileRefuses : public ::testing::TestWithParam<Refusal> {};

TEST_P(TokenizerFileRefuses, ByName) {
  const Refusal& refusal = GetParam();
  EXPECT_THAT(ErrorAfter([&](Json& json) { json[Json::json_pointer(refusal.pointer)] = refusal.value; }),
              AllOf(StartsWith("t.json: "), HasSubstr(refusal.message)));
}

const Json kSplit = {
    {"type", "Split"}, {"pattern", {{"Regex", "x"}}}, {"behavior", "Isolated"}, {"invert", false}};
const Json kByteLevel = {{"type", "ByteLevel"}, {"add_prefix_space", false}};

Json SplitBy(const std::string& regex, const std::string& behavior = "Isolated") {
  Json split = kSplit;
  split["pattern"]["Regex"] = regex;
  split["behavior"] = behavior;
  return {{"type", "Sequence"}, {"pretokenizers", {split, kByteLevel}}};
}

INSTANTIATE_TEST_SUITE_P(
    Fields, TokenizerFileRefuses,
    ::testing::Values(
        Refusal{"/model/type", "Unigram", "model: model type \"Unigram\" is not supported"},
        Refusal{"/model/vocab", Json::array(), "model.vocab is not an object"},
        Refusal{"/model/vocab/a", "x", "model.vocab[\"a\"] is not an integer"},
        Refusal{"/model/vocab/a", -1, "model.vocab[\"a\"] is not in"},
        Refusal{"/model/vocab/a", 1 << 30, "model.vocab[\"a\"] is not in"},
        Refusal{"/model/vocab/a", 5, "have the same id 5"},
        Refusal{"/model/merges/0", "one", "model.merges[0] is not a pair"},
        Refusal{"/model/merges/0", {"q", "\u0100\u0100"}, "model.merges[0]"},
        Refusal{"/model/dropout", 0.1, "model: dropout is not supported"},
        Refusal{"/model/end_of_word_suffix", "</w>", "model: end_of_word_suffix is not supported"},
        Refusal{"/added_tokens/0/id", 7, "added_tokens[0]: \"<|endoftext|>\" has id 7 here and 0"},
        Refusal{"/added_tokens/0/content", 7, "added_tokens[0].content is not a string"},
        Refusal{"/added_tokens/0/content", "new",
                "added_tokens[0]: id 0 is \"new\" here and \"<|endoftext|>\""},
        Refusal{"/added_tokens/0/lstrip", 1, "added_tokens[0].lstrip is not true or false"},
        Refusal{"/normalizer", {{"type", "NFKC"}}, "normalizer: \"NFKC\" is not supported"},
        Refusal{"/pre_tokenizer", nullptr, "pre_tokenizer: null is not supported"},
        Refusal{"/pre_tokenizer", {{"type", "Metaspace"}}, "pre_tokenizer: \"Metaspace\" as the last step"},
        Refusal{"/pre_tokenizer", kSplit, "pre_tokenizer does not end in ByteLevel"},
        Refusal{"/pre_tokenizer", SplitBy("x", "MergedWithNext"),
                "behavior \"MergedWithNext\" is not supported"},
        Refusal{"/pre_tokenizer", SplitBy("\\w+"), "regex construct \\w is not supported"},
        Refusal{"/pre_tokenizer", SplitBy("[a&&b]"), "regex construct && is not supported"},
        Refusal{"/pre_tokenizer", SplitBy("[a[b]]"), "regex construct [ in a class is not supported"},
        Refusal{"/pre_tokenizer", SplitBy("\\p{Han}"), "regex construct \\p{Han} is not supported"},
        Refusal{"/pre_tokenizer", SplitBy("(?m:x)"), "regex construct (?m: is not supported"},
        Refusal{"/pre_tokenizer", SplitBy("(x"), "missing closing parenthesis"},
        Refusal{"/post_processor", {{"type", "BertProcessing"}}, "post_processor: \"BertProcessing\" is not"},
        Refusal{"/decoder", nullptr, "decoder: null is not supported"},
        Refusal{"/decoder", {{"type", "WordPiece"}}, "decoder: \"WordPiece\" as step 1 is not supported"}));

class SentencePieceFileRefuses : public ::testing::TestWithParam<Refusal> {};

TEST_P(SentencePieceFileRefuses, ByName) {
  Json json = Json::parse(MustReadFile("tests/data/text/mistral.tokenizer.json"));
  json[Json::json_pointer(GetParam().pointer)] = GetParam().value;
  EXPECT_THAT(ParseError(json.dump()), AllOf(StartsWith("t.json: "), HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, SentencePieceFileRefuses,
    ::testing::Values(
        Refusal{"/model/unk_token", "<none>", "model.unk_token \"<none>\" is not in model.vocab"},
        Refusal{"/normalizer/normalizers/0/type", "Lowercase", "\"Lowercase\" is not supported"},
        Refusal{"/normalizer/normalizers/1/pattern", {{"Regex", " "}}, "\"Replace\" is not supported"},
        Refusal{"/normalizer/normalizers/1/pattern/String", "", "pattern is empty"},
        Refusal{"/normalizer/normalizers/1/content", "longer", "a content that is so much longer"},
        Refusal{"/normalizer/normalizers",
                Json::array({{{"type", "NFC"}},
                             {{"type", "NFC"}},
                             {{"type", "NFC"}},
                             {{"type", "NFC"}},
                             {{"type", "NFC"}}}),
                "more than 4 steps"},
        Refusal{"/pre_tokenizer", kByteLevel, "pre_tokenizer: \"ByteLevel\" as the last step"},
        Refusal{
            "/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "\u2581"}}, "split is not supported"},
        Refusal{"/pre_tokenizer",
                {{"type", "Metaspace"}, {"replacement", "_"}, {"split", false}},
                "pre_tokenizer.replacement is not the decoder's"},
        Refusal{
            "/pre_tokenizer",
            {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"split", false}, {"prepend_scheme", "last"}},
            "prepend_scheme \"last\""},
        Refusal{"/decoder/decoders/3/start", 2, "this Strip"},
        Refusal{"/decoder/decoders/0/content", "_", "what is put in place"},
        Refusal{"/decoder/decoders/1/type", "CTC", "\"CTC\" as step 2"},
        Refusal{"/decoder/decoders", Json::array({{{"type", "Fuse"}}}), "\"Fuse\" as step 1"}));

TEST(TokenizerFile, TemplateWithATokenOutsideTheVocabularyIsRefused) {
  const Json bos = {{"id", "<s>"}, {"ids", {123456}}, {"tokens", {"<s>"}}};
  const Json single = {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                       {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}};
  EXPECT_THAT(ErrorAfter([&](Json& json) {
                json["post_processor"] = {
                    {"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", {{"<s>", bos}}}};
              }),
              HasSubstr("post_processor uses token 123456"));
}

TEST(TokenizerFile, UnknownTokenIsRefusedOnlyWhereItCouldOccur) {
  EXPECT_EQ(ErrorAfter([](Json& json) { json["model"]["unk_token"] = "<|endoftext|>"; }), "none");
  const std::string content = R"({"model": {"vocab": {"a": 0}, "merges": [], "unk_token": "a"},
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "decoder": {"type": "ByteLevel"}})";
  EXPECT_THAT(ParseError(content), HasSubstr("model.unk_token is not supported"));
}

TEST(TokenizerFingerprint, DoesNotDependOnHowTheFileIsWritten) {
  const uint64_t fingerprint = LoadTokenizer(kGpt2Small)->Fingerprint();
  EXPECT_EQ(FingerprintAfter(kNoChange), fingerprint);
  EXPECT_EQ((*Tokenizer::Parse(Changed(kNoChange).dump(4), "t.json"))->Fingerprint(), fingerprint);
  EXPECT_EQ(FingerprintAfter([](Json& json) {
              for (Json& merge : json["model"]["merges"]) {
                merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
              }
              json["model"].erase("type");
              json["model"].erase("ignore_merges");
              json["pre_tokenizer"].erase("use_regex");
            }),
            fingerprint);
}

// Files of one model may differ in these, and GGUF files always do.
TEST(TokenizerFingerprint, DoesNotDependOnWhatLeavesIdsTheirMeaning) {
  const uint64_t fingerprint = LoadTokenizer(kGpt2Small)->Fingerprint();
  for (const char* flag : {"special", "normalized"}) {
    EXPECT_EQ(FingerprintAfter(Turned(flag)), fingerprint) << flag;
  }
  EXPECT_EQ(FingerprintAfter([](Json& json) { json["model"]["vocab"].erase("<|endoftext|>"); }), fingerprint)
      << "it is among the added tokens too";
  EXPECT_EQ(LoadTokenizer("tests/data/text/metaspace.tokenizer.json")->Fingerprint(),
            LoadTokenizer("tests/data/text/mistral.tokenizer.json")->Fingerprint())
      << "two forms of SentencePiece's leading space";
}

TEST(TokenizerFingerprint, DependsOnWhatTokensMean) {
  const uint64_t fingerprint = LoadTokenizer(kGpt2Small)->Fingerprint();
  EXPECT_NE(FingerprintAfter(
                [](Json& json) { std::swap(json["model"]["vocab"]["a"], json["model"]["vocab"]["b"]); }),
            fingerprint);
  EXPECT_NE(
      FingerprintAfter([](Json& json) { std::swap(json["model"]["merges"][0], json["model"]["merges"][1]); }),
      fingerprint);
  EXPECT_NE(FingerprintAfter([](Json& json) { json["model"]["ignore_merges"] = true; }), fingerprint);
  EXPECT_NE(FingerprintAfter([](Json& json) { json["added_tokens"].clear(); }), fingerprint);
  EXPECT_NE(FingerprintAfter([](Json& json) { json["pre_tokenizer"]["use_regex"] = false; }), fingerprint);
  for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
    EXPECT_NE(FingerprintAfter(Turned(flag)), fingerprint) << flag;
  }
  EXPECT_NE(LoadTokenizer(kOptions)->Fingerprint(), fingerprint);
}

TEST(TokenizerFile, IgnoreMergesTakesAWordThatIsAToken) {
  const std::string content = R"({"model": {"type": "BPE", "ignore_merges": true,
        "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5}, "merges": ["a b", "b c"]},
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "decoder": {"type": "ByteLevel"}})";
  const auto tokenizer = Tokenizer::Parse(content, "t.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->Encode("abc", false).value(), ::testing::ElementsAre(5));
  EXPECT_THAT((*tokenizer)->Encode("abcc", false).value(), ::testing::ElementsAre(3, 2, 2));
}

}  // namespace
}  // namespace outrider
