// Tokenizers in small GGUF files: the meaning of their metadata, their agreement with tokenizer.json, and
// damage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/temporary_folder.h"
#include "common/text/bpe_model.h"
#include "tests/unit/gguf_testing.h"
#include "tests/unit/some_of.h"
#include "tests/unit/text_testing.h"

namespace outrider {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::json;

constexpr int32_t kNormalType = 1, kUnknownType = 2, kControlType = 3, kUserType = 4, kUnusedType = 5,
                  kByteType = 6;

std::string GgufKey(const std::string& name) { return "tokenizer.ggml." + name; }

// Tokens with their types and scores.
class GgufVocabulary {
 public:
  explicit GgufVocabulary(const std::string& model) { content_.Set(GgufKey("model"), model); }

  GgufVocabulary& Add(const std::string& token, int32_t type = kNormalType, float score = 0) {
    tokens_.push_back(token);
    types_.push_back(type);
    scores_.push_back(score);
    return *this;
  }
  GgufContent Content() const {
    GgufContent content = content_;
    return content.Set(GgufKey("tokens"), tokens_)
        .Set(GgufKey("token_type"), types_)
        .Set(GgufKey("scores"), scores_);
  }

 private:
  GgufContent content_;
  std::vector<std::string> tokens_;
  std::vector<int32_t> types_;
  std::vector<float> scores_;
};

// a b c ab Ġ Ġa <end> <think>
GgufContent SmallGpt2() {
  GgufVocabulary vocabulary("gpt2");
  for (const char* token : {"a", "b", "c", "ab", "\u0120", "\u0120a"}) vocabulary.Add(token);
  vocabulary.Add("<end>", kControlType).Add("<think>", kUserType).Add("[PAD8]", kUnusedType);
  const std::vector<std::string> merges = {"a b", "\u0120 a"};
  return vocabulary.Content()
      .Set(GgufKey("pre"), "gpt-2")
      .Set(GgufKey("merges"), merges)
      .Set(GgufKey("bos_token_id"), uint32_t{6})
      .Set(GgufKey("eos_token_id"), uint32_t{6});
}

// <unk> <s> </s>, the bytes from id 3, then from id 259 ▁ a b ▁▁ ▁a ab aba
GgufContent SmallLlama() {
  GgufVocabulary vocabulary("llama");
  vocabulary.Add("<unk>", kUnknownType).Add("<s>", kControlType).Add("</s>", kControlType);
  for (int byte = 0; byte < 256; ++byte) vocabulary.Add(ByteToken(static_cast<uint8_t>(byte)), kByteType);
  vocabulary.Add("\u2581", kNormalType, -9).Add("a", kNormalType, -9).Add("b", kNormalType, -9);
  vocabulary.Add("  ", kUserType, -1000).Add("\u2581a", kNormalType, -2).Add("ab", kNormalType, -1);
  return vocabulary.Add("aba", kNormalType, -3).Content();
}

class GgufTokenizerFile : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const GgufContent& content) const {
    content.WriteTo(path_);
    return Tokenizer::Load(path_);
  }
  std::string ErrorOf(const GgufContent& content) const {
    const auto tokenizer = Load(content);
    if (tokenizer.ok()) return "none";
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(tokenizer.status().message());
  }
  std::vector<TokenId> Encoded(const GgufContent& content, const std::string& text,
                               bool special = false) const {
    const auto tokenizer = Load(content);
    if (!tokenizer.ok()) ADD_FAILURE() << tokenizer.status();
    return tokenizer.ok() ? (*tokenizer)->Encode(text, special).value() : std::vector<TokenId>();
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/model.gguf";
};

TEST_F(GgufTokenizerFile, TypesSayHowTokensAreFound) {
  EXPECT_THAT(Encoded(SmallGpt2(), "ab a<think><end>c"), ElementsAre(3, 5, 7, 6, 2));
  const auto tokenizer = Load(SmallGpt2()).value();
  EXPECT_TRUE(tokenizer->IsSpecial(6));
  EXPECT_FALSE(tokenizer->IsSpecial(7));
  EXPECT_EQ(tokenizer->vocab_size(), 8) << "padding is no token";
  const AddedTokens::Range all[] = {{0, 5}};
  EXPECT_THAT(tokenizer->Encode("<end>", false, all).value(), IsEmpty()) << "no letter of it is a token";
}

TEST_F(GgufTokenizerFile, AWordIsNeverAControlToken) {
  GgufContent content = SmallGpt2();
  const std::vector<std::string> tokens = {"a", "b", "c", "ab", "\u0120", "\u0120a", "END", "x", "[PAD8]"};
  content.Set(GgufKey("tokens"), tokens).Set(GgufKey("pre"), "llama-bpe");
  const auto tokenizer = Load(content).value();
  const AddedTokens::Range all[] = {{0, 3}};
  EXPECT_THAT(tokenizer->Encode("END", false).value(), ElementsAre(6));
  EXPECT_THAT(tokenizer->Encode("END", false, all).value(), IsEmpty());
  content.Set(GgufKey("merges"), std::vector<std::string>{"a b", "E ND"});
  EXPECT_THAT(ErrorOf(content), HasSubstr("merges: element 1, \"E ND\", uses a token that is not in"));
}

TEST_F(GgufTokenizerFile, PiecesAreNeverMergedIntoAControlToken) {
  GgufVocabulary vocabulary("llama");
  vocabulary.Add("<unk>", kUnknownType).Add("ab", kControlType).Add("a").Add("b").Add("c", kControlType);
  const auto tokenizer = Load(vocabulary.Content().Set(GgufKey("add_space_prefix"), false)).value();
  const AddedTokens::Range all[] = {{0, 4}};
  EXPECT_THAT(tokenizer->Encode("abcb", false).value(), ElementsAre(1, 4, 3));
  EXPECT_THAT(tokenizer->Encode("abcb", false, all).value(), ElementsAre(2, 3, 0, 3)) << "c is unknown";
}

TEST_F(GgufTokenizerFile, BeginsAndEndsTextsAsTheFileOrTheModelSays) {
  const auto ends = [&](GgufContent content) { return Encoded(content, "a", true); };
  EXPECT_THAT(ends(SmallGpt2()), ElementsAre(0));
  EXPECT_THAT(ends(SmallGpt2().Set(GgufKey("pre"), "llama-bpe")), ElementsAre(6, 0));
  EXPECT_THAT(ends(SmallGpt2().Set(GgufKey("add_bos_token"), true).Set(GgufKey("add_eos_token"), true)),
              ElementsAre(6, 0, 6));
  EXPECT_THAT(ends(SmallLlama()), ElementsAre(1, 263));
  EXPECT_THAT(ends(SmallLlama().Set(GgufKey("add_bos_token"), false).Set(GgufKey("add_eos_token"), true)),
              ElementsAre(263, 2));
}

TEST_F(GgufTokenizerFile, ScoresSayWhatIsMergedFirst) {
  EXPECT_THAT(Encoded(SmallLlama(), "a"), ElementsAre(263));
  EXPECT_THAT(Encoded(SmallLlama(), "ab"), ElementsAre(259, 264)) << "ab comes before \u2581a";
  EXPECT_THAT(Encoded(SmallLlama(), "aba"), ElementsAre(259, 265));
}

TEST_F(GgufTokenizerFile, SpacesAreSentencePieces) {
  EXPECT_THAT(Encoded(SmallLlama(), "b"), ElementsAre(259, 261));
  EXPECT_THAT(Encoded(SmallLlama().Set(GgufKey("add_space_prefix"), false), "b a"), ElementsAre(261, 263));
  EXPECT_THAT(Encoded(SmallLlama(), " b  a"), ElementsAre(262, 261, 262, 260)) << "runs come first";
  EXPECT_THAT(Encoded(SmallLlama(), "b\n\u00e9"), ElementsAre(259, 261, 3 + 0x0A, 3 + 0xC3, 3 + 0xA9));
  const auto tokenizer = Load(SmallLlama()).value();
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode("b  a\n\u00e9", false).value(), false), "b  a\n\u00e9");
}

// A tokenizer.json of tests/data/text as converters write it to GGUF.
GgufContent Converted(const Json& json, const std::string& model) {
  std::map<TokenId, std::pair<std::string, int32_t>> tokens;
  for (const auto& [token, id] : json["model"]["vocab"].items()) tokens[id] = {token, kNormalType};
  for (const Json& token : json["added_tokens"]) {
    tokens[token["id"]] = {token["content"], token["special"].get<bool>() ? kControlType : kUserType};
  }
  GgufVocabulary vocabulary(model);
  for (const auto& [id, token] : tokens) vocabulary.Add(token.first, token.second);
  std::vector<std::string> merges;
  for (const Json& merge : json["model"]["merges"]) {
    merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  return vocabulary.Content().Set(GgufKey("merges"), merges).Set(GgufKey("bos_token_id"), uint32_t{1});
}

struct Conversion {
  std::string json, model, pre;
};

class GgufOfAFolder : public GgufTokenizerFile, public ::testing::WithParamInterface<Conversion> {};

INSTANTIATE_TEST_SUITE_P(GgufTokenizerFile, GgufOfAFolder,
                         ::testing::Values(Conversion{"gpt2-small", "gpt2", "gpt-2"},
                                           Conversion{"qwen", "gpt2", "qwen2"},
                                           Conversion{"gemma", "gemma4", ""}),
                         [](const auto& info) { return info.param.pre.substr(0, 3) + info.param.model; });

TEST_P(GgufOfAFolder, HasItsFingerprintAndItsIds) {
  const std::string json = MustReadFile("tests/data/text/" + GetParam().json + ".tokenizer.json");
  const auto expected = Tokenizer::Parse(json, "t.json").value();
  const auto tokenizer =
      Load(Converted(Json::parse(json), GetParam().model).Set(GgufKey("pre"), GetParam().pre)).value();
  EXPECT_EQ(tokenizer->Fingerprint(), expected->Fingerprint());
  std::mt19937 random(5);
  for (int i = 0; i < SomeOf(300); ++i) {
    const std::string text = RandomBytes(random) + "<think>[INST]";
    const std::vector<TokenId> tokens = expected->Encode(text, false).value();
    EXPECT_EQ(tokenizer->Encode(text, false).value(), tokens) << text;
    EXPECT_EQ(tokenizer->Decode(tokens, false), expected->Decode(tokens, false));
  }
}

// transformers' converter makes the same model, but orders merges of equal scores in ways of its own.
TEST_F(GgufTokenizerFile, OfScoresHasTheFingerprintOfTheConvertedModel) {
  const auto json_of = [&](const Json& merges, const Json& pre_tokenizer, const Json& normalizer) {
    Json json = Json::parse(MustReadFile("tests/data/text/mistral.tokenizer.json"));
    json["added_tokens"].erase(4);
    json["added_tokens"].erase(3);
    json["added_tokens"].push_back(json["added_tokens"][0]);
    json["added_tokens"][3].update({{"id", 262}, {"content", "\u2581\u2581"}, {"special", false}});
    json["model"]["vocab"] = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
    for (int byte = 0; byte < 256; ++byte)
      json["model"]["vocab"][ByteToken(static_cast<uint8_t>(byte))] = 3 + byte;
    int id = 259;
    for (const char* token : {"\u2581", "a", "b", "\u2581\u2581", "\u2581a", "ab", "aba"}) {
      json["model"]["vocab"][token] = id++;
    }
    json["model"]["merges"] = merges;
    json["pre_tokenizer"] = pre_tokenizer;
    json["normalizer"] = normalizer;
    return Tokenizer::Parse(json.dump(), "t.json").value();
  };
  const Json normalizer = Json::parse(MustReadFile("tests/data/text/mistral.tokenizer.json"))["normalizer"];
  Json merges = Json::parse(R"([["\u2581", "a"], ["\u2581", "\u2581"], ["a", "b"], ["ab", "a"]])");
  const auto tokenizer = Load(SmallLlama()).value();
  EXPECT_EQ(json_of(merges, nullptr, normalizer)->Fingerprint(), tokenizer->Fingerprint());
  // Another form of the step that puts a space before a text.
  const Json metaspace = {
      {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}, {"split", false}};
  EXPECT_EQ(json_of(merges, metaspace, nullptr)->Fingerprint(), tokenizer->Fingerprint());
  EXPECT_NE(json_of(merges, nullptr, normalizer["normalizers"][1])->Fingerprint(), tokenizer->Fingerprint());
  merges.erase(0);
  EXPECT_NE(json_of(merges, nullptr, normalizer)->Fingerprint(), tokenizer->Fingerprint());
}

struct GgufDamage {
  std::function<void(GgufContent&)> damage;
  std::string message;
};

class DamagedGgufTokenizer : public GgufTokenizerFile, public ::testing::WithParamInterface<GgufDamage> {};

TEST_P(DamagedGgufTokenizer, IsRefusedInOneLineWithTheKey) {
  GgufContent content = SmallGpt2();
  GetParam().damage(content);
  EXPECT_THAT(ErrorOf(content),
              AllOf(StartsWith(path_ + ": tokenizer.ggml." + GetParam().message), Not(HasSubstr("\n"))));
}

template <class T>
GgufDamage Given(const std::string& key, const T& value, const std::string& message) {
  return {[=](GgufContent& content) { content.Set(GgufKey(key), value); }, message};
}
GgufDamage Missing(const std::string& key, const std::string& message) {
  return {[=](GgufContent& content) { content.Erase(GgufKey(key)); }, message};
}
using Texts = std::vector<std::string>;

INSTANTIATE_TEST_SUITE_P(
    GgufTokenizerFile, DamagedGgufTokenizer,
    ::testing::Values(Missing("model", "model: \"\" is not supported"),
                      Given("model", "rwkv", "model: \"rwkv\" is not supported"),
                      Given("model", "no\nline", "model: \"no\\nline\" is not supported"),
                      Given("model", uint32_t{1}, "model: not a string"),
                      Given("pre", "kimi-k2", "pre: \"kimi-k2\" is not supported"),
                      Given("pre", std::string(1000, '\xFF'), "pre: \"\\xff"),
                      Missing("tokens", "tokens: missing"), Given("tokens", "a", "tokens: not an array"),
                      Given("tokens", std::vector<int32_t>(9), "tokens: an array of another type"),
                      Given("tokens", Texts{"a"}, "token_type: 9 elements for 1 tokens"),
                      Given("tokens", Texts(9, "same"), "tokens: tokens 0 and 1 are both \"same\""),
                      Given("tokens", Texts{"a", "b", "c", "d", "e", "f", "g", "h", "\xC3"},
                            "tokens: token 8 is not UTF-8: \"\\xc3\""),
                      Missing("token_type", "token_type: missing"),
                      Given("token_type", Texts(9), "token_type: an array of another type"),
                      Given("token_type", std::vector<int32_t>(8), "token_type: 8 elements for "),
                      Missing("merges", "merges: missing"),
                      Given("merges", Texts{"ab"}, "merges: element 0, \"ab\", is not a pair of tokens"),
                      Given("merges", Texts{"a b", "b\n c"},
                            "merges: element 1, \"b\\n c\", uses a token that"),
                      Given("merges", Texts{"b a"}, "merges: element 0, \"b a\", uses a token that"),
                      Given("add_bos_token", uint32_t{1}, "add_bos_token: not true or false"),
                      Given("add_eos_token", "yes", "add_eos_token: not true or false")));

TEST_F(GgufTokenizerFile, DamagedScoresAreRefusedInOneLine) {
  const auto error = [&](const std::string& key, const auto& value) {
    return ErrorOf(SmallLlama().Set(GgufKey(key), value));
  };
  const std::string begin = path_ + ": tokenizer.ggml.";
  EXPECT_EQ(ErrorOf(SmallLlama().Erase(GgufKey("scores"))), begin + "scores: missing");
  EXPECT_EQ(error("scores", std::vector<float>(3)), begin + "scores: 3 elements for 266 tokens");
  EXPECT_EQ(error("scores", std::vector<float>(266, std::numeric_limits<float>::quiet_NaN())),
            begin + "scores: the score of token 259 is not finite");
  EXPECT_EQ(error("unknown_token_id", uint32_t{266}), begin + "unknown_token_id: no token's id, or missing");
  EXPECT_EQ(error("bos_token_id", int32_t{-1}), begin + "bos_token_id: no token's id, or missing");
  EXPECT_EQ(error("add_space_prefix", float{1}), begin + "add_space_prefix: not true or false");
  GgufVocabulary long_token("llama");
  EXPECT_EQ(ErrorOf(long_token.Add("<s>", kControlType).Add(std::string(257, 'a')).Content()),
            begin + "tokens: token 1 has 257 bytes, at most 256 are supported");
}

TEST_F(GgufTokenizerFile, WithoutATokenToBeginWithIsRefused) {
  EXPECT_EQ(ErrorOf(SmallGpt2().Erase(GgufKey("bos_token_id")).Set(GgufKey("add_bos_token"), true)),
            path_ + ": tokenizer.ggml.bos_token_id: no token's id, or missing");
}

TEST_F(GgufTokenizerFile, MissingFileIsNamed) {
  const auto tokenizer = Tokenizer::Load(path_);
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(tokenizer.status().message()), StartsWith(path_ + ": "));
}

TEST_F(GgufTokenizerFile, AnyChangedByteIsSurvived) {
  std::mt19937 random(7);
  for (const GgufContent& content : {SmallGpt2(), SmallLlama()}) {
    const std::string bytes = content.Bytes();
    for (int i = 0; i < SomeOf(300); ++i) {
      std::string damaged = bytes;
      damaged[random() % damaged.size()] = static_cast<char>(random() % 256);
      if (random() % 4 == 0) damaged.resize(random() % damaged.size());
      std::ofstream(path_, std::ios::binary) << damaged;
      const auto tokenizer = Tokenizer::Load(path_);
      if (tokenizer.ok()) (*tokenizer)->Encode("Some <think> text", true).status().IgnoreError();
      EXPECT_THAT(std::string(tokenizer.status().message()), Not(HasSubstr("\n")));
    }
  }
}

}  // namespace
}  // namespace outrider
