#include "common/engine/decoder/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "bench/temporary_folder.h"

namespace outrider {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Json = nlohmann::json;

class ModelConfigTest : public ::testing::Test {
 protected:
  void SetUp() override {
    config_ = Json::parse(R"({
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 3072,
      "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24, "num_key_value_heads": 8,
      "head_dim": 128, "hidden_act": "silu", "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
      "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                       "original_max_position_embeddings": 8192, "rope_type": "llama3"},
      "max_position_embeddings": 131072, "vocab_size": 128256, "tie_word_embeddings": true,
      "attention_bias": false, "mlp_bias": false, "bos_token_id": 128000,
      "eos_token_id": [128001, 128008, 128009], "torch_dtype": "bfloat16"})");
  }

  void Write(const std::string& name, const std::string& text) { std::ofstream(dir_ + "/" + name) << text; }

  absl::StatusOr<ModelConfig> Read() {
    Write("config.json", config_.dump());
    return ReadModelConfig(dir_);
  }

  // The error for config.json with this value of `field`. It must be one line.
  std::string ErrorWith(const std::string& field, const Json& value) {
    Json changed = config_;
    changed[Json::json_pointer(field)] = value;
    Write("config.json", changed.dump());
    const absl::StatusOr<ModelConfig> config = ReadModelConfig(dir_);
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << field;
    const std::string message(config.status().message());
    EXPECT_THAT(message, AllOf(HasSubstr(dir_ + "/config.json: "), Not(HasSubstr("\n"))));
    return message;
  }

  const TemporaryFolder folder_;
  const std::string& dir_ = folder_.path();
  Json config_;
};

TEST_F(ModelConfigTest, ReadsLlama32) {
  const absl::StatusOr<ModelConfig> config = Read();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->decoder.vocab_size, 128256);
  EXPECT_EQ(config->decoder.hidden_size, 3072);
  EXPECT_EQ(config->decoder.intermediate_size, 8192);
  EXPECT_EQ(config->decoder.layers, 28);
  EXPECT_EQ(config->decoder.heads, 24);
  EXPECT_EQ(config->decoder.kv_heads, 8);
  EXPECT_EQ(config->decoder.head_dim, 128);
  EXPECT_EQ(config->decoder.max_position_embeddings, 131072);
  EXPECT_DOUBLE_EQ(config->decoder.rms_norm_eps, 1e-5);
  EXPECT_DOUBLE_EQ(config->decoder.rope_theta, 500000);
  ASSERT_TRUE(config->decoder.rope_scaling.has_value());
  EXPECT_DOUBLE_EQ(config->decoder.rope_scaling->factor, 32);
  EXPECT_DOUBLE_EQ(config->decoder.rope_scaling->low_freq_factor, 1);
  EXPECT_DOUBLE_EQ(config->decoder.rope_scaling->high_freq_factor, 4);
  EXPECT_EQ(config->decoder.rope_scaling->original_max_position_embeddings, 8192);
  EXPECT_TRUE(config->decoder.tie_word_embeddings);
  EXPECT_EQ(config->bos_token_id, 128000);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(128001, 128008, 128009));
  EXPECT_EQ(config->dtype, "bfloat16");
}

TEST_F(ModelConfigTest, ReadsTheSpellingOfTransformers5) {
  Json rope = config_["rope_scaling"];
  rope["rope_theta"] = 123456.0;
  config_.erase("rope_scaling");
  config_.erase("rope_theta");
  config_.erase("torch_dtype");
  config_["rope_parameters"] = rope;
  config_["dtype"] = "float16";
  const absl::StatusOr<ModelConfig> config = Read();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_DOUBLE_EQ(config->decoder.rope_theta, 123456);
  ASSERT_TRUE(config->decoder.rope_scaling.has_value());
  EXPECT_DOUBLE_EQ(config->decoder.rope_scaling->factor, 32);
  EXPECT_EQ(config->dtype, "float16");
}

TEST_F(ModelConfigTest, DefaultsWhatMayBeAbsent) {
  for (const char* name :
       {"head_dim", "num_key_value_heads", "rope_scaling", "rope_theta", "tie_word_embeddings",
        "bos_token_id", "eos_token_id", "torch_dtype", "hidden_act"}) {
    config_.erase(name);
  }
  const absl::StatusOr<ModelConfig> config = Read();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->decoder.head_dim, 128);
  EXPECT_EQ(config->decoder.kv_heads, 24);
  EXPECT_FALSE(config->decoder.rope_scaling.has_value());
  EXPECT_DOUBLE_EQ(config->decoder.rope_theta, 10000);
  EXPECT_FALSE(config->decoder.tie_word_embeddings);
  EXPECT_FALSE(config->bos_token_id.has_value());
  EXPECT_THAT(config->eos_token_ids, IsEmpty());
}

TEST_F(ModelConfigTest, GenerationConfigOverridesTheEndOfSequence) {
  Write("generation_config.json", R"({"eos_token_id": 5, "temperature": 0.6})");
  EXPECT_THAT(Read()->eos_token_ids, ElementsAre(5));
  Write("generation_config.json", R"({"eos_token_id": [6, 7]})");
  EXPECT_THAT(Read()->eos_token_ids, ElementsAre(6, 7));
  Write("generation_config.json", R"({"temperature": 0.6})");
  EXPECT_THAT(Read()->eos_token_ids, ElementsAre(128001, 128008, 128009));
  Write("generation_config.json", R"({"eos_token_id": 128256})");
  EXPECT_THAT(Read().status().message(),
              AllOf(HasSubstr("generation_config.json"), HasSubstr("eos_token_id")));
  Write("generation_config.json", "{");
  EXPECT_THAT(Read().status().message(), HasSubstr("generation_config.json: not JSON: byte 2"));
}

TEST_F(ModelConfigTest, RefusesAnUnknownFamilyAndListsThoseThatWork) {
  const std::string known = "supported: llama, qwen2, qwen3, mistral, gemma2, gemma3_text";
  EXPECT_THAT(ErrorWith("/model_type", "gpt2"), HasSubstr("model_type is \"gpt2\"; " + known));
  EXPECT_THAT(ErrorWith("/model_type", nullptr), HasSubstr("model_type is missing; " + known));
  EXPECT_THAT(ErrorWith("/model_type", 7), HasSubstr("model_type is not a string: 7"));
  // The family is named even if another field is wrong too.
  config_["hidden_size"] = "many";
  EXPECT_THAT(ErrorWith("/model_type", "gpt2"), HasSubstr("model_type"));
}

TEST_F(ModelConfigTest, RefusesOtherModelsByName) {
  EXPECT_THAT(ErrorWith("/model_type", "mistral"), HasSubstr("architectures"));
  EXPECT_THAT(ErrorWith("/architectures", Json::array({"LlamaForSequenceClassification"})),
              HasSubstr("architectures"));
  EXPECT_THAT(ErrorWith("/hidden_act", "gelu"), HasSubstr("hidden_act"));
  EXPECT_THAT(ErrorWith("/attention_bias", true), HasSubstr("attention_bias"));
  EXPECT_THAT(ErrorWith("/mlp_bias", true), HasSubstr("mlp_bias"));
  EXPECT_THAT(ErrorWith("/quantization_config", Json::object({{"bits", 4}})),
              HasSubstr("quantization_config"));
  EXPECT_THAT(ErrorWith("/rope_scaling/rope_type", "yarn"),
              AllOf(HasSubstr("rope_scaling.rope_type"), HasSubstr("yarn")));
  EXPECT_THAT(ErrorWith("/rope_scaling", Json::object({{"type", "yarn"}, {"factor", 2}})),
              AllOf(HasSubstr("rope_scaling.type"), HasSubstr("yarn")));
}

TEST_F(ModelConfigTest, RefusesDamagedFieldsByName) {
  EXPECT_THAT(ErrorWith("/vocab_size", nullptr), HasSubstr("vocab_size is missing"));
  EXPECT_THAT(ErrorWith("/vocab_size", "many"), HasSubstr("vocab_size is not an integer"));
  EXPECT_THAT(ErrorWith("/vocab_size", 0), HasSubstr("vocab_size is out of range"));
  EXPECT_THAT(ErrorWith("/hidden_size", 3072.5), HasSubstr("hidden_size is not an integer"));
  EXPECT_THAT(ErrorWith("/hidden_size", 3071), HasSubstr("hidden_size is odd"));
  EXPECT_THAT(ErrorWith("/hidden_size", uint64_t{1} << 63), HasSubstr("hidden_size is out of range"));
  EXPECT_THAT(ErrorWith("/num_hidden_layers", -1), HasSubstr("num_hidden_layers is out of range"));
  EXPECT_THAT(ErrorWith("/num_key_value_heads", 7), HasSubstr("num_key_value_heads does not divide"));
  EXPECT_THAT(ErrorWith("/head_dim", 127), HasSubstr("head_dim is odd"));
  EXPECT_THAT(ErrorWith("/rms_norm_eps", 0), HasSubstr("rms_norm_eps is not a positive number"));
  EXPECT_THAT(ErrorWith("/rope_theta", "x"), HasSubstr("rope_theta is not a positive number"));
  EXPECT_THAT(ErrorWith("/rope_scaling", 3), HasSubstr("rope_scaling is not an object"));
  EXPECT_THAT(ErrorWith("/rope_scaling/factor", nullptr), HasSubstr("rope_scaling.factor is missing"));
  EXPECT_THAT(ErrorWith("/rope_scaling/high_freq_factor", 1.0), HasSubstr("rope_scaling.high_freq_factor"));
  EXPECT_THAT(ErrorWith("/tie_word_embeddings", 1), HasSubstr("tie_word_embeddings is not true or false"));
  EXPECT_THAT(ErrorWith("/eos_token_id", Json::array({1, -1})), HasSubstr("eos_token_id is not a token id"));
  EXPECT_THAT(ErrorWith("/bos_token_id", "<s>"), HasSubstr("bos_token_id is not a token id"));
}

TEST_F(ModelConfigTest, RefusesAFileThatIsMissingOrNotJson) {
  EXPECT_EQ(ReadModelConfig(dir_).status().code(), absl::StatusCode::kNotFound);
  for (const char* text : {"", "{", "[]", "null", "{\"vocab_size\": 3,}"}) {
    Write("config.json", text);
    EXPECT_THAT(std::string(ReadModelConfig(dir_).status().message()),
                AnyOf(HasSubstr("config.json: not a JSON object"), HasSubstr("config.json: not JSON: byte"),
                      HasSubstr("config.json: cannot be read, or is empty")))
        << text;
  }
}

// A recursive parser would exhaust the stack long before a million levels.
TEST_F(ModelConfigTest, RefusesJsonThatNestsDeep) {
  std::string deep = config_.dump();
  deep.insert(
      1, absl::StrCat("\"hidden_size\":", std::string(1'000'000, '['), std::string(1'000'000, ']'), ","));
  Write("config.json", deep);
  EXPECT_EQ(std::string(ReadModelConfig(dir_).status().message()),
            dir_ + "/config.json: JSON that nests more than 64 deep");
}

}  // namespace
}  // namespace outrider
