// Added tokens that are not in a tokenizer.json but in the files beside it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "bench/temporary_folder.h"
#include "common/text/tokenizer.h"

namespace outrider {
namespace {

using ::testing::HasSubstr;

constexpr char kFile[] = "tests/data/text/gpt2-small.tokenizer.json";

class TokensBeside : public ::testing::Test {
 protected:
  TokensBeside() : plain_(Tokenizer::Load(kFile).value()) {
    std::filesystem::copy_file(kFile, folder_.path() + "/tokenizer.json");
  }
  void Write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_.path() + "/" + name) << content;
  }
  absl::StatusOr<std::unique_ptr<Tokenizer>> Load() const {
    return Tokenizer::Load(folder_.path() + "/tokenizer.json");
  }
  // The tokens of "a<q>b", without those of "a" and "b".
  std::vector<TokenId> Between() const {
    std::vector<TokenId> tokens = Load().value()->Encode("a<q>b", false).value();
    EXPECT_EQ(tokens.front(), plain_->Encode("a", false)->front());
    EXPECT_EQ(tokens.back(), plain_->Encode("b", false)->front());
    return {tokens.begin() + 1, tokens.end() - 1};
  }

  const std::unique_ptr<Tokenizer> plain_;
  const TemporaryFolder folder_;
};

TEST_F(TokensBeside, WithoutThemItIsText) { EXPECT_GT(Between().size(), 1u); }

TEST_F(TokensBeside, OfTheConfigTheFilesAndTheNamesOfSpecialOnes) {
  const std::vector<TokenId> next = {plain_->vocab_size()};
  Write("special_tokens_map.json", R"({"pad_token": {"content": "<q>"}})");
  EXPECT_EQ(Between(), next);
  EXPECT_TRUE(Load().value()->IsSpecial(next[0]));
  std::filesystem::remove(folder_.path() + "/special_tokens_map.json");

  Write("added_tokens.json", R"({"<q>": 70000})");
  EXPECT_EQ(Between(), next) << "whatever id the file gives it, as in transformers";
  EXPECT_FALSE(Load().value()->IsSpecial(next[0]));

  Write("tokenizer_config.json",
        R"({"added_tokens_decoder": {"9": {"content": "<r>"}, "10": {"content": "<q>"}}})");
  EXPECT_EQ(Between(), std::vector<TokenId>{next[0] + 1}) << "in the order of their ids";
  Write("tokenizer_config.json", R"({"added_tokens_decoder": {}})");
  EXPECT_GT(Between().size(), 1u) << "it stands for the other files, too";
  Write("tokenizer_config.json", R"({"additional_special_tokens": ["<q>"]})");
  EXPECT_EQ(Between(), next);
}

TEST_F(TokensBeside, ThatAreThereChangeNothing) {
  Write(
      "tokenizer_config.json",
      R"({"eos_token": "<|endoftext|>", "added_tokens_decoder": {"0": {"content": "<|endoftext|>", "special": false}}})");
  EXPECT_EQ(Load().value()->vocab_size(), plain_->vocab_size());
  EXPECT_TRUE(Load().value()->IsSpecial(*plain_->TokenToId("<|endoftext|>")));
}

TEST_F(TokensBeside, LeaveTheFingerprintOfTheFile) {
  Write("added_tokens.json", R"({"<q>": 4096})");
  EXPECT_EQ(Load().value()->Fingerprint(), plain_->Fingerprint());
}

TEST_F(TokensBeside, DamagedFilesAreNamed) {
  Write("tokenizer_config.json", "[]");
  EXPECT_THAT(std::string(Load().status().message()), HasSubstr("tokenizer_config.json: not a JSON object"));
  Write("tokenizer_config.json", "{}");
  Write("added_tokens.json", "{");
  EXPECT_THAT(std::string(Load().status().message()), HasSubstr("added_tokens.json: "));
}

}  // namespace
}  // namespace outrider
