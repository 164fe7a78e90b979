// The architecture that the metadata of a GGUF file gives, and the metadata that are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "common/engine/decoder/gguf_model.h"
#include "tests/unit/gguf_testing.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A model of two layers, with only those weights that the configuration is read from.
GgufContent Model(const std::string& architecture) {
  GgufContent content;
  const auto set = [&](const char* name, auto value) { content.Set(architecture + "." + name, value); };
  content.Set("general.architecture", architecture);
  set("block_count", uint32_t{2});
  set("context_length", uint32_t{64});
  set("embedding_length", uint32_t{16});
  set("feed_forward_length", uint32_t{32});
  set("attention.head_count", uint32_t{4});
  set("attention.head_count_kv", uint32_t{2});
  set("attention.layer_norm_rms_epsilon", 1e-6f);
  content.AddTensor("token_embd.weight", {8, 16}, std::vector<float>(8 * 16));
  return content;
}

absl::StatusOr<ModelConfig> Read(const GgufContent& content) {
  std::string path = (std::filesystem::temp_directory_path() / "gguf-XXXXXX").string();
  close(mkstemp(path.data()));
  content.WriteTo(path);
  const auto file = GgufFile::Open(path);
  std::filesystem::remove(path);
  if (!file.ok()) return file.status();
  return ReadGgufConfig(*file);
}

std::string Refusal(const GgufContent& content) { return std::string(Read(content).status().message()); }

TEST(GgufConfig, HasTheSizesOfLlama) {
  const auto config = Read(Model("llama"));
  ASSERT_TRUE(config.ok()) << config.status();
  const DecoderConfig& decoder = config->decoder;
  EXPECT_EQ(decoder.vocab_size, 8);
  EXPECT_EQ(decoder.hidden_size, 16);
  EXPECT_EQ(decoder.intermediate_size, 32);
  EXPECT_EQ(decoder.layers, 2);
  EXPECT_EQ(decoder.heads, 4);
  EXPECT_EQ(decoder.kv_heads, 2);
  EXPECT_EQ(decoder.head_dim, 4);
  EXPECT_EQ(decoder.max_position_embeddings, 64);
  EXPECT_EQ(decoder.rope_theta, 10000);
  EXPECT_TRUE(decoder.tie_word_embeddings);
  EXPECT_TRUE(config->eos_token_ids.empty());
  EXPECT_EQ(config->packed, "");
}

TEST(GgufConfig, HasAHeadOfItsOwnWhereThereIsOne) {
  EXPECT_FALSE(Read(Model("llama").AddTensor("output.weight", {8, 16}, std::vector<float>(8 * 16)))
                   ->decoder.tie_word_embeddings);
}

TEST(GgufConfig, ScalesRotationByKeysAndByFactors) {
  GgufContent model = Model("llama");
  model.Set("llama.rope.freq_base", 500000.0f).AddTensor("rope_freqs.weight", {2}, {1, 4});
  const auto by_factors = Read(model);
  ASSERT_TRUE(by_factors.ok()) << by_factors.status();
  const float plain = 1 / std::sqrt(500000.0f);
  EXPECT_THAT(RopeInverseFrequencies(by_factors->decoder), ElementsAre(1, plain / 4));
  model.Set("llama.rope.scaling.type", std::string("linear")).Set("llama.rope.scaling.factor", 8.0f);
  EXPECT_THAT(RopeInverseFrequencies(Read(model)->decoder), ElementsAre(1.0f / 8, plain / 4 / 8));
  EXPECT_THAT(Refusal(model.Set("llama.rope.scaling.type", std::string("yarn"))),
              HasSubstr("llama.rope.scaling.type is none of \"none\" and \"linear\": \"yarn\""));
}

TEST(GgufConfig, RefusesFactorsThatAreNone) {
  for (const std::vector<float>& factors :
       {std::vector<float>{1}, {1, 0}, {1, std::numeric_limits<float>::quiet_NaN()}}) {
    GgufContent model = Model("llama");
    model.AddTensor("rope_freqs.weight", {static_cast<int64_t>(factors.size())}, factors);
    EXPECT_THAT(Refusal(model), HasSubstr("rope_freqs.weight"));
  }
}

TEST(GgufConfig, QwenHasBiasesOrNormsOfHeads) {
  EXPECT_TRUE(Read(Model("qwen2"))->decoder.qkv_bias);
  EXPECT_TRUE(Read(Model("qwen3"))->decoder.qk_norm);
}

TEST(GgufConfig, MistralSlidesInAllLayers) {
  const auto config = Read(Model("llama").Set("llama.attention.sliding_window", uint32_t{5}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->decoder.sliding_window, 5);
  EXPECT_THAT(config->decoder.slides, ElementsAre(true, true));
}

TEST(GgufConfig, GemmaSlidesInTurnsAndHasTheOneOfItsNormsAdded) {
  GgufContent model = Model("gemma2");
  model.Set("gemma2.attn_logit_softcapping", 50.0f).Set("gemma2.final_logit_softcapping", 30.0f);
  const auto gemma2 = Read(model);
  ASSERT_TRUE(gemma2.ok()) << gemma2.status();
  EXPECT_EQ(gemma2->decoder.sliding_window, 4096);
  EXPECT_THAT(gemma2->decoder.slides, ElementsAre(true, false));
  EXPECT_EQ(gemma2->decoder.attention_softcap, 50);
  EXPECT_EQ(gemma2->decoder.final_softcap, 30);
  EXPECT_EQ(gemma2->decoder.embedding_scale, 4);
  EXPECT_EQ(gemma2->decoder.query_scale, 0.5);
  EXPECT_TRUE(gemma2->decoder.output_norms);
  EXPECT_FALSE(gemma2->decoder.norms_plus_one);

  model = Model("gemma3");
  EXPECT_EQ(Read(model)->decoder.sliding_window, 0);
  model.Set("gemma3.attention.sliding_window", uint32_t{9}).Set("gemma3.block_count", uint32_t{7});
  const auto gemma3 = Read(model);
  ASSERT_TRUE(gemma3.ok()) << gemma3.status();
  EXPECT_THAT(gemma3->decoder.slides, ElementsAre(true, true, true, true, true, false, true));
  EXPECT_EQ(gemma3->decoder.sliding_rope_theta, 1e4);
  model.Set("gemma3.attention.sliding_window_pattern", std::vector<bool>(7, true));
  EXPECT_EQ(Read(model)->decoder.slides, std::vector<bool>(7, true));
}

TEST(GgufConfig, ScalesQueriesOfTheLargestGemmaByItsWidth) {
  GgufContent model = Model("gemma2");
  model.Set("gemma2.attention.key_length", uint32_t{8}).Set("gemma2.attention.value_length", uint32_t{8});
  EXPECT_DOUBLE_EQ(*Read(model)->decoder.query_scale, 1 / std::sqrt(8.0));
  model.Set("gemma2.block_count", uint32_t{46});
  EXPECT_DOUBLE_EQ(*Read(model)->decoder.query_scale, 1 / std::sqrt(4.0));
}

TEST(GgufConfig, ATextEndsWithItsKeysTokensAndWithControlTokensOfKnownNames) {
  GgufContent model = Model("llama");
  model.Set("tokenizer.ggml.tokens", std::vector<std::string>{"a", "<|im_end|>", "<EOT>", "d", "e", "f"});
  model.Set("tokenizer.ggml.token_type", std::vector<int32_t>{1, 3, 1, 1, 1, 1});
  model.Set("tokenizer.ggml.bos_token_id", uint32_t{0}).Set("tokenizer.ggml.eos_token_id", uint32_t{5});
  model.Set("tokenizer.ggml.eot_token_id", uint32_t{3});
  const auto config = Read(model);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->bos_token_id, 0);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(1, 3, 5));
  EXPECT_THAT(Refusal(model.Set("tokenizer.ggml.eos_token_id", uint32_t{8})),
              HasSubstr("tokenizer.ggml.eos_token_id is not a token id in [0, 8): 8"));
}

TEST(GgufConfig, NamesWhatIsMissingOrNotSupported) {
  EXPECT_THAT(Refusal(Model("mamba")),
              HasSubstr("general.architecture is \"mamba\"; supported: llama, qwen2, qwen3, gemma2, gemma3"));
  EXPECT_THAT(Refusal(Model("llama").Erase("general.architecture")),
              HasSubstr("general.architecture is missing; supported"));
  EXPECT_THAT(Refusal(Model("llama").Erase("llama.block_count")), HasSubstr("llama.block_count is missing"));
  EXPECT_THAT(Refusal(GgufContent().Set("general.architecture", std::string("llama"))),
              HasSubstr("token_embd.weight is missing; layers alone are named with"));
  const std::pair<const char*, uint32_t> bad[] = {{"block_count", 0},
                                                  {"block_count", 1 << 20},
                                                  {"attention.head_count_kv", 3},
                                                  {"attention.key_length", 5},
                                                  {"embedding_length", 17},
                                                  {"feed_forward_length", 33},
                                                  {"attention.value_length", 6},
                                                  {"rope.dimension_count", 2},
                                                  {"expert_count", 8},
                                                  {"context_length", 0}};
  for (const auto& [key, value] : bad) {
    const std::string name = std::string("llama.") + key;
    EXPECT_THAT(Refusal(Model("llama").Set(name, value)), HasSubstr(name)) << value;
  }
  EXPECT_THAT(Refusal(Model("llama").Set("llama.block_count", std::string("\xff"))),
              HasSubstr("llama.block_count is not an integer"));
}

}  // namespace
}  // namespace outrider
