// config.json of each family, as its models have it, to DecoderConfig.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/temporary_folder.h"
#include "common/engine/decoder/decoder_config.h"
#include "common/engine/decoder/model_config.h"
#include "common/engine/runner.h"

namespace outrider {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

class Family : public ::testing::Test {
 protected:
  absl::StatusOr<DecoderConfig> Read(const Json& config) {
    std::ofstream(folder_.path() + "/config.json") << config.dump();
    const absl::StatusOr<ModelConfig> read = ReadModelConfig(folder_.path());
    if (!read.ok()) return read.status();
    return read->decoder;
  }
  std::string Error(Json config, const std::string& field, const Json& value) {
    config[field] = value;
    return std::string(Read(config).status().message());
  }

  const TemporaryFolder folder_;

  const Json qwen25_ = Json::parse(R"({
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864,
    "max_position_embeddings": 32768, "max_window_layers": 21, "model_type": "qwen2",
    "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true,
    "torch_dtype": "bfloat16", "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936})");
  const Json qwen3_ = Json::parse(R"({
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "bos_token_id": 151643,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
    "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
    "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936})");
  const Json mistral_ = Json::parse(R"({
    "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
    "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "vocab_size": 32000})");
  const Json gemma2_ = Json::parse(R"({
    "architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attn_logit_softcapping": 50.0,
    "bos_token_id": 2, "eos_token_id": 1, "final_logit_softcapping": 30.0, "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304,
    "intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2",
    "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096,
    "vocab_size": 256000})");
  const Json gemma3_ = Json::parse(R"({
    "architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attn_logit_softcapping": null,
    "bos_token_id": 2, "eos_token_id": 1, "final_logit_softcapping": null, "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912,
    "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4,
    "num_hidden_layers": 26, "num_key_value_heads": 1, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": 512,
    "sliding_window_pattern": 6, "vocab_size": 262144})");
};

TEST_F(Family, Qwen25HasBiasesAndAWindowThatItDoesNotUse) {
  const absl::StatusOr<DecoderConfig> spec = Read(qwen25_);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->qkv_bias);
  EXPECT_FALSE(spec->qk_norm);
  EXPECT_EQ(spec->head_dim, 64);
  EXPECT_EQ(spec->sliding_window, 0);
  EXPECT_DOUBLE_EQ(spec->rope_theta, 1e6);
  EXPECT_TRUE(spec->tie_word_embeddings);
}

TEST_F(Family, Qwen25SlidesFromALayerOnWhereItSaysSo) {
  Json config = qwen25_;
  config["use_sliding_window"] = true;
  const absl::StatusOr<DecoderConfig> spec = Read(config);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->sliding_window, 32768);
  EXPECT_FALSE(spec->Slides(20));
  EXPECT_TRUE(spec->Slides(21));
  // The form that transformers 5 writes.
  std::vector<std::string> types(24, "full_attention");
  types[3] = "sliding_attention";
  config["layer_types"] = types;
  EXPECT_TRUE(Read(config)->Slides(3));
  EXPECT_FALSE(Read(config)->Slides(21));
}

TEST_F(Family, Qwen3HasNormsOfHeadsThatAreWiderThanTheirShare) {
  const absl::StatusOr<DecoderConfig> spec = Read(qwen3_);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->qk_norm);
  EXPECT_FALSE(spec->qkv_bias);
  EXPECT_EQ(spec->head_dim, 128);
  EXPECT_EQ(spec->hidden_size / spec->heads, 64);
}

TEST_F(Family, MistralSlidesInAllLayersOrInNone) {
  absl::StatusOr<DecoderConfig> spec = Read(mistral_);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->sliding_window, 4096);
  EXPECT_TRUE(spec->Slides(0) && spec->Slides(31));
  Json config = mistral_;  // that of version 0.3
  config["sliding_window"] = nullptr;
  config["rope_theta"] = 1000000.0;
  spec = Read(config);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->sliding_window, 0);
  EXPECT_FALSE(spec->Slides(0));
}

TEST_F(Family, Gemma2CapsScoresAndSlidesInEveryOtherLayer) {
  const absl::StatusOr<DecoderConfig> spec = Read(gemma2_);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->tie_word_embeddings) << "its default";
  EXPECT_EQ(spec->activation, Activation::kGeluTanh);
  EXPECT_TRUE(spec->norms_plus_one && spec->output_norms);
  EXPECT_DOUBLE_EQ(*spec->embedding_scale, 48);
  EXPECT_DOUBLE_EQ(*spec->query_scale, 1.0 / 16);
  EXPECT_DOUBLE_EQ(*spec->attention_softcap, 50);
  EXPECT_DOUBLE_EQ(*spec->final_softcap, 30);
  EXPECT_TRUE(spec->Slides(0));
  EXPECT_FALSE(spec->Slides(1));
}

TEST_F(Family, Gemma3RotatesInTwoWays) {
  const absl::StatusOr<DecoderConfig> spec = Read(gemma3_);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->qk_norm);
  EXPECT_FALSE(spec->attention_softcap.has_value() || spec->final_softcap.has_value());
  EXPECT_TRUE(spec->Slides(4));
  EXPECT_FALSE(spec->Slides(5));
  EXPECT_DOUBLE_EQ(spec->rope_theta, 1e6);
  EXPECT_DOUBLE_EQ(*spec->sliding_rope_theta, 1e4);

  // The larger models divide frequencies by 8. This is the form that transformers 5 writes.
  Json config = gemma3_;
  for (const char* field : {"rope_local_base_freq", "rope_scaling", "rope_theta", "sliding_window_pattern"}) {
    config.erase(field);
  }
  config["rope_parameters"] = {
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 10000.0}}},
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1000000.0}}}};
  const absl::StatusOr<DecoderConfig> larger = Read(config);
  ASSERT_TRUE(larger.ok()) << larger.status();
  EXPECT_FLOAT_EQ(RopeInverseFrequencies(*larger)[3], RopeInverseFrequencies(*spec)[3] / 8);
  EXPECT_EQ(SlidingRopeInverseFrequencies(*larger), SlidingRopeInverseFrequencies(*spec));
}

// The defaults of transformers 5.23.
TEST_F(Family, WhatIsAbsentHasTheFamilysDefault) {
  const auto without = [this](Json config, std::vector<const char*> fields) {
    for (const char* field : fields) config.erase(field);
    const absl::StatusOr<DecoderConfig> spec = Read(config);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec.value_or(DecoderConfig());
  };
  EXPECT_EQ(without(mistral_, {"sliding_window"}).sliding_window, 4096);
  const DecoderConfig gemma2 =
      without(gemma2_, {"attn_logit_softcapping", "final_logit_softcapping", "sliding_window", "head_dim"});
  EXPECT_EQ(gemma2.attention_softcap, 50);
  EXPECT_EQ(gemma2.final_softcap, 30);
  EXPECT_EQ(gemma2.sliding_window, 4096);
  EXPECT_EQ(gemma2.head_dim, 256);
  const DecoderConfig gemma3 = without(gemma3_, {"rope_theta", "rope_local_base_freq"});
  EXPECT_EQ(gemma3.rope_theta, 1e6);
  EXPECT_EQ(gemma3.sliding_rope_theta, 1e4);
}

TEST_F(Family, AWindowThatNoLayerHasIsNone) {
  Json config = qwen25_;
  config["use_sliding_window"] = true;
  config["max_window_layers"] = 24;
  EXPECT_EQ(Read(config)->sliding_window, 0);
}

TEST_F(Family, WhatIsNotSupportedIsNamed) {
  EXPECT_THAT(Error(qwen3_, "attention_bias", true), HasSubstr("attention_bias is true"));
  EXPECT_THAT(Error(qwen25_, "hidden_act", "gelu"), HasSubstr("hidden_act is not \"silu\""));
  EXPECT_THAT(Error(gemma2_, "hidden_activation", "gelu"), HasSubstr("hidden_activation"));
  EXPECT_THAT(Error(mistral_, "sliding_window", 0), HasSubstr("sliding_window"));
  EXPECT_THAT(Error(mistral_, "layer_types", {"full_attention"}), HasSubstr("layer_types is no list of"));
  EXPECT_THAT(Error(mistral_, "layer_types", std::vector<std::string>(32, "chunked_attention")),
              HasSubstr("chunked_attention"));
  EXPECT_THAT(Error(gemma2_, "query_pre_attn_scalar", nullptr), HasSubstr("query_pre_attn_scalar"));
  EXPECT_THAT(Error(qwen25_, "architectures", {"Qwen2ForSequenceClassification"}),
              HasSubstr("architectures"));
}

TEST(NativeEngine, SaysWhichEngineHasWhatItLacks) {
  for (const char* model : {"gemma2", "gemma3"}) {
    RunnerOptions options;
    options.model_dir = std::string("tests/data/engine/") + model;
    const absl::Status status = Runner::Load(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("config.json"), HasSubstr("only --engine torch computes")));
  }
}

}  // namespace
}  // namespace outrider
