// A head that is cut to the frequent tokens.
#include "common/engine/decoder/frequent_head.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_join.h"
#include "bench/temporary_folder.h"
#include "engine_helpers.h"

namespace outrider::testing {
namespace {

using ::testing::HasSubstr;

class FrequentHead : public ::testing::Test {
 protected:
  // Copies a model, with this list of frequent tokens. Returns the path of the copy.
  std::string WithFrequentTokens(const std::string& model, const std::string& list) {
    const std::string copy = absl::StrCat(folder_.path(), "/", ++copies_);
    std::filesystem::copy(DataDir(model), copy);
    std::ofstream(copy + "/frequent_tokens.json") << "{\"tokens\": " << list << "}";
    return copy;
  }

 private:
  const TemporaryFolder folder_;
  int copies_ = 0;
};

// Tokens 1, 4, 7, ... of the vocabulary, the last ones first.
std::string EveryThird(int vocab) {
  std::vector<TokenId> tokens;
  for (int token = 1; token < vocab; token += 3) tokens.push_back(token);
  return absl::StrCat("[", absl::StrJoin(tokens.rbegin(), tokens.rend(), ","), "]");
}

Logits LogitsOf(const RunnerOptions& options, absl::Span<const TokenId> tokens) {
  const std::unique_ptr<Runner> runner = LoadOrDie(options);
  const std::vector<BlockId> blocks = {0, 1, 2, 3};
  return Append(*runner, tokens, 0, blocks, static_cast<int>(tokens.size()));
}

TEST_F(FrequentHead, HasTheLogitsOfItsTokensAndRulesOutTheOthers) {
  constexpr int kCount = 20;
  for (const char* model : {"mha-float32", "dim128-odd-sizes", "qwen2-bias"}) {
    for (const char* dtype : {"float32", "bfloat16", "int8"}) {
      SCOPED_TRACE(absl::StrCat(model, " ", dtype));
      RunnerOptions options = Options(model);
      options.dtype = dtype;
      const int vocab = LoadOrDie(options)->config().decoder.vocab_size;
      const std::vector<TokenId> tokens = SomeTokens(13, vocab);
      const Logits whole = LogitsOf(options, tokens);
      options.model_dir = WithFrequentTokens(model, EveryThird(vocab));
      options.frequent_tokens = kCount;
      const Logits cut = LogitsOf(options, tokens);
      ASSERT_EQ(cut.size(), whole.size());
      for (size_t r = 0; r < cut.size(); ++r) {
        ASSERT_EQ(cut[r].size(), whole[r].size());
        int listed = 0;
        for (int token = 0; token < vocab; ++token) {
          const float logit = cut[r][static_cast<size_t>(token)];
          // The list begins with the last of every third token.
          const bool frequent = token % 3 == 1 && vocab - token <= 3 * kCount;
          listed += frequent;
          if (frequent) {
            EXPECT_EQ(logit, whole[r][static_cast<size_t>(token)]) << token;
          } else {
            EXPECT_EQ(logit, -1e30f) << token;
          }
        }
        EXPECT_EQ(listed, kCount);
      }
    }
  }
}

// Embeddings are the head's rows only where both are the same matrix.
TEST_F(FrequentHead, HasTheTextsTokensToo) {
  for (const auto& [model, tied] : {std::pair("mha-float32", true), std::pair("dim128-odd-sizes", false)}) {
    SCOPED_TRACE(model);
    RunnerOptions options = Options(model);
    options.dtype = "float32";
    const int vocab = LoadOrDie(options)->config().decoder.vocab_size;
    const std::vector<TokenId> tokens = SomeTokens(5, vocab), text = {2, 4, 3, 2};
    const Logits whole = LogitsOf(options, tokens);
    options.model_dir = WithFrequentTokens(model, "[4, 7]");
    options.frequent_tokens = 2;
    const std::unique_ptr<Runner> runner = LoadOrDie(options);
    const std::vector<BlockId> blocks = {0, 1};
    const SequenceRows rows = {.tokens = tokens, .blocks = blocks, .logit_rows = 2, .text = text};
    const LogitsView cut = runner->Forward({&rows, 1}).value();
    for (int r = 0; r < 2; ++r) {
      for (int token = 0; token < vocab; ++token) {
        const bool has = token == 4 || token == 7 || (tied && (token == 2 || token == 3));
        const float right = has ? whole[static_cast<size_t>(3 + r)][static_cast<size_t>(token)] : -1e30f;
        EXPECT_NEAR(cut.row(r)[static_cast<size_t>(token)], right, 1e-4) << token;
      }
    }
  }
}

TEST_F(FrequentHead, OfAllTokensIsTheHead) {
  RunnerOptions options = Options("mha-float32");
  const std::vector<TokenId> tokens = SomeTokens(5, 50);
  const Logits whole = LogitsOf(options, tokens);
  options.frequent_tokens = 1 << 20;  // more than the vocabulary, so no list is needed
  EXPECT_EQ(LogitsOf(options, tokens), whole);
}

TEST_F(FrequentHead, LeavesHiddenStatesAsTheyAre) {
  RunnerOptions options = Options("mha-float32");
  const std::vector<TokenId> tokens = SomeTokens(5, 50);
  const std::vector<BlockId> blocks = {0};
  const auto last_hidden = [&] {
    const std::unique_ptr<Runner> runner = LoadOrDie(options);
    const SequenceRows rows = {.tokens = tokens, .blocks = blocks, .logit_rows = 1, .hidden_rows = 2};
    const HiddenView hidden = runner->Forward({&rows, 1})->hidden;
    EXPECT_EQ(hidden.rows, 2);
    return std::vector<float>(hidden.row(1).begin(), hidden.row(1).end());
  };
  const std::vector<float> whole = last_hidden();
  options.model_dir = WithFrequentTokens("mha-float32", EveryThird(50));
  options.frequent_tokens = 4;
  EXPECT_EQ(last_hidden(), whole);
}

TEST_F(FrequentHead, ReadsLess) {
  RunnerOptions options = Options("mha-float32");
  const std::unique_ptr<Runner> whole = LoadOrDie(options);
  options.model_dir = WithFrequentTokens("mha-float32", EveryThird(whole->config().decoder.vocab_size));
  options.frequent_tokens = 16;
  EXPECT_LT(LoadOrDie(options)->weight_bytes(), whole->weight_bytes());
}

TEST_F(FrequentHead, AListThatWillNotDoIsRefused) {
  RunnerOptions options = Options("mha-float32");
  options.frequent_tokens = 3;
  const auto error = [&](const std::string& list) {
    options.model_dir = WithFrequentTokens("mha-float32", list);
    return std::string(Runner::Load(options).status().message());
  };
  EXPECT_THAT(std::string(Runner::Load(options).status().message()),
              HasSubstr("mha-float32/frequent_tokens.json: cannot be read"));
  EXPECT_THAT(error("[1, 2]"),
              HasSubstr("frequent_tokens.json: tokens are 2, fewer than --frequent-tokens 3"));
  EXPECT_THAT(error("[1, 2, 1]"), HasSubstr("tokens has 1 twice"));
  EXPECT_THAT(error("[1, 2, 1000000]"), HasSubstr("tokens is not a token id in [0, "));
  EXPECT_THAT(error("{}"), HasSubstr("tokens is not a token id"));
  options.frequent_tokens = -1;
  EXPECT_THAT(error("[1]"), HasSubstr("--frequent-tokens -1: must be at least 0"));
}

}  // namespace
}  // namespace outrider::testing
