// config.json's quantization_config: the forms that checkpoints have, and those that are refused.
#include "common/engine/decoder/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "common/engine/decoder/field_reader.h"

namespace outrider {
namespace {

using Json = nlohmann::json;
using namespace nlohmann::literals;

const Json& Fp8() {
  static const Json& config = *new Json(Json::parse(R"({
    "config_groups": {"group_0": {
      "input_activations": {"actorder": null, "block_structure": null, "dynamic": true, "group_size": null,
                            "num_bits": 8, "observer": null, "strategy": "token", "symmetric": true,
                            "type": "float"},
      "output_activations": null, "targets": ["Linear"],
      "weights": {"actorder": null, "block_structure": null, "dynamic": false, "group_size": null, "num_bits": 8,
                  "observer": "minmax", "observer_kwargs": {}, "strategy": "channel", "symmetric": true,
                  "type": "float"}}},
    "format": "float-quantized", "global_compression_ratio": 1.2, "ignore": ["lm_head"],
    "kv_cache_scheme": null, "quant_method": "compressed-tensors", "quantization_status": "compressed",
    "sparsity_config": {}, "transform_config": {}, "version": "0.12.2"})"));
  return config;
}
const Json& Gptq4() {
  static const Json& config = *new Json(Json::parse(R"({
    "bits": 4, "checkpoint_format": "gptq", "damp_percent": 0.01, "desc_act": true, "dynamic": null,
    "group_size": 128, "lm_head": false, "meta": {"quantizer": ["gptqmodel:2.2.0"]}, "pack_dtype": "int32",
    "quant_method": "gptq", "sym": true, "true_sequential": true})"));
  return config;
}
const Json& Awq4() {
  static const Json& config = *new Json(Json::parse(R"({
    "backend": "autoawq", "bits": 4, "do_fuse": false, "exllama_config": null, "fuse_max_seq_len": null,
    "group_size": 128, "modules_to_fuse": null, "modules_to_not_convert": ["lm_head"], "quant_method": "awq",
    "version": "GEMM", "zero_point": true})"));
  return config;
}

absl::StatusOr<std::optional<Quantization>> Read(const Json& quantization) {
  const Json config = {{"quantization_config", quantization}};
  FieldReader fields("config.json", config);
  const std::optional<Quantization> read = ReadQuantization(fields);
  if (!fields.status().ok()) return fields.status();
  return read;
}

std::string Words(const Json& quantization) {
  const auto read = Read(quantization);
  return read.ok() ? QuantizationInWords(**read) : std::string(read.status().message());
}

Json With(Json config, const std::string& field, const Json& value) {
  config[Json::json_pointer(field)] = value;
  return config;
}

TEST(Quantization, IsReadAsCheckpointsHaveIt) {
  const std::string weights = "/config_groups/group_0/weights";
  EXPECT_EQ(Words(Fp8()), "compressed-tensors, fp8, a scale for each row");
  EXPECT_EQ(Words(With(Fp8(), weights + "/strategy", "tensor")),
            "compressed-tensors, fp8, a scale for each tensor");
  Json int8 = With(With(Fp8(), weights + "/type", "int"), "/format", "int-quantized");
  EXPECT_EQ(Words(int8), "compressed-tensors, int8, a scale for each row");
  int8["format"] = "naive-quantized";
  int8["sparsity_config"] = R"({"format": "dense", "targets": []})"_json;
  EXPECT_EQ(Words(int8), "compressed-tensors, int8, a scale for each row");
  int8["config_groups"]["group_1"] = int8["config_groups"]["group_0"];
  EXPECT_EQ(Words(int8), "compressed-tensors, int8, a scale for each row");
  Json int4 = With(With(int8, "/format", "pack-quantized"), weights,
                   R"({"num_bits": 4, "type": "int", "group_size": 32, "actorder": "weight"})"_json);
  int4["config_groups"].erase("group_1");
  EXPECT_EQ(Words(int4), "compressed-tensors, int4, groups of 32");
  EXPECT_EQ(Words(Gptq4()), "gptq, int4, groups of 128 in order of activation");
  EXPECT_EQ(Words(With(With(Gptq4(), "/group_size", -1), "/desc_act", false)),
            "gptq, int4, a scale for each row");
  EXPECT_EQ(Words(Awq4()), "awq, int4, groups of 128");
}

TEST(Quantization, IsNoneWhereTheFieldIsAbsentOrNull) {
  EXPECT_FALSE(Read(nullptr)->has_value());
  const Json none = Json::object();
  FieldReader fields("config.json", none);
  EXPECT_FALSE(ReadQuantization(fields).has_value());
}

TEST(Quantization, ThatCannotBeUnpackedIsNamed) {
  const std::string group = "/config_groups/group_0", weights = group + "/weights";
  const std::string weights_name = "config_groups.group_0.weights";
  const struct {
    Json config;
    std::string error;
  } cases[] = {
      {R"({"bits": 4})"_json, "quant_method is missing; supported: compressed-tensors, gptq, awq"},
      {R"({"quant_method": "bitsandbytes", "load_in_4bit": true})"_json,
       "quant_method is \"bitsandbytes\"; supported: compressed-tensors, gptq, awq"},
      {R"({"quant_method": "fp8"})"_json,
       "quant_method is \"fp8\"; supported: compressed-tensors, gptq, awq"},
      {R"({"quant_method": 4})"_json, "quant_method is not a string: 4"},

      {With(Fp8(), "/format", "marlin-24"),
       "format is \"marlin-24\"; supported: float-quantized, int-quantized, naive-quantized, pack-quantized"},
      {With(Fp8(), "/kv_cache_scheme", R"({"num_bits": 8})"_json),
       "kv_cache_scheme is set: a quantised KV cache is not supported"},
      {With(Fp8(), "/transform_config", R"({"config_groups": {"u": 1}})"_json),
       "transform_config is set: transforms of activations are not supported"},
      {With(Fp8(), "/sparsity_config", R"({"format": "sparse-24-bitmask"})"_json),
       "sparsity_config.format is \"sparse-24-bitmask\"; supported: dense"},
      {With(Fp8(), "/config_groups", nullptr), "config_groups is missing or empty"},
      {With(Fp8(), "/config_groups", Json::array({Fp8()})), "config_groups is not an object"},
      {With(Fp8(), group, R"(["Linear"])"_json), "config_groups.group_0 is not an object"},
      {With(Fp8(), group + "/format", "pack-quantized"),
       "config_groups.group_0.format is \"pack-quantized\"; supported: float-quantized"},
      {With(Fp8(), weights, nullptr), weights_name + " is missing"},
      {With(Fp8(), weights, 8), weights_name + " is not an object"},
      {With(Fp8(), weights + "/num_bits", 4), weights_name + ".num_bits is 4; supported: 8"},
      {With(Fp8(), weights + "/num_bits", nullptr), weights_name + ".num_bits is missing"},
      {With(Fp8(), weights + "/type", "int"), weights_name + ".type is \"int\"; supported: float"},
      {With(Fp8(), weights + "/strategy", "block"),
       weights_name + ".strategy is \"block\"; supported: tensor, channel, group"},
      {With(Fp8(), weights + "/strategy", "group"), weights_name + ".group_size is missing"},
      {With(Fp8(), weights + "/symmetric", false),
       weights_name + ".symmetric is false, and type is \"float\""},
      {With(Fp8(), weights + "/dynamic", true),
       weights_name + ".dynamic is true: weights are quantised once"},
      {With(Fp8(), weights + "/actorder", "group"),
       weights_name + ".actorder is \"group\"; supported: \"weight\""},
      {With(Fp8(), "/config_groups/group_1", R"({"weights": {"num_bits": 8, "type": "float"}})"_json),
       "config_groups.group_1.weights are not as those of group_0, which is not supported"},
      {With(With(Fp8(), "/format", "pack-quantized"), weights,
            R"({"num_bits": 3, "type": "int", "strategy": "channel"})"_json),
       weights_name + ".num_bits is 3; supported: 4, 8"},
      {With(With(Fp8(), "/format", "pack-quantized"), weights, R"({"num_bits": 4, "type": "int"})"_json),
       weights_name + ".strategy is \"tensor\"; supported: channel, group"},

      {With(Gptq4(), "/bits", 3), "bits is 3; supported: 4, 8"},
      {With(Gptq4(), "/bits", "4"), "bits is not an integer: \"4\""},
      {With(Gptq4(), "/group_size", 0), "group_size is 0"},
      {With(Gptq4(), "/group_size", -2), "group_size is out of range: -2"},
      {With(Gptq4(), "/desc_act", 1), "desc_act is not true or false: 1"},
      {With(Gptq4(), "/checkpoint_format", "marlin"),
       "checkpoint_format is \"marlin\"; supported: gptq, gptq_v2"},
      {With(Gptq4(), "/pack_dtype", "int16"), "pack_dtype is \"int16\"; supported: int32"},
      {With(Gptq4(), "/is_marlin_format", true), "is_marlin_format is true: this layout is not supported"},
      {With(Gptq4(), "/dynamic", R"({"-:lm_head": {}})"_json),
       "dynamic is set: modules that differ are not supported"},

      {With(Awq4(), "/bits", 8), "bits is 8; supported: 4"},
      {With(Awq4(), "/version", "gemv"), "version is \"gemv\"; supported: gemm"},
      {With(Awq4(), "/backend", "llm-awq"), "backend is \"llm-awq\"; supported: autoawq"},
      {With(Awq4(), "/zero_point", false), "zero_point is false, which is not supported"},
  };
  for (const auto& [config, error] : cases) {
    EXPECT_EQ(Read(config).status(), absl::InvalidArgumentError("config.json: quantization_config." + error));
  }
  EXPECT_EQ(Read(4).status(),
            absl::InvalidArgumentError("config.json: quantization_config is not an object"));
}

}  // namespace
}  // namespace outrider
