#include "common/engine/decoder/model_config.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

// Reads fields of one JSON object, keeping the first thing that is wrong; what is read after that does not
// matter.
class FieldReader {
 public:
  FieldReader(std::string path, std::string prefix, const Json& object)
      : path_(std::move(path)), prefix_(std::move(prefix)), object_(object) {}

  // null counts as absent, as in Python's.
  bool Has(const char* name) const { return object_.contains(name) && !object_[name].is_null(); }
  const Json& At(const char* name) const { return object_[name]; }

  int Int(const char* name, int low, int high = std::numeric_limits<int>::max()) {
    if (!Has(name)) return Fail(name, "is missing"), 0;
    const Json& value = object_[name];
    if (!value.is_number_integer()) return Fail(name, "is not an integer: ", value.dump()), 0;
    const bool fits =
        value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t{0x7fffffffffffffff} : true;
    const int64_t number = fits ? value.get<int64_t>() : std::numeric_limits<int64_t>::max();
    if (number < low || number > high) return Fail(name, "is out of range: ", value.dump()), 0;
    return static_cast<int>(number);
  }

  double Positive(const char* name) {
    if (!Has(name)) return Fail(name, "is missing"), 1;
    const Json& value = object_[name];
    const double number = value.is_number() ? value.get<double>() : 0;
    if (!(number > 0) || !std::isfinite(number))
      return Fail(name, "is not a positive number: ", value.dump()), 1;
    return number;
  }

  bool Bool(const char* name, bool otherwise) {
    if (!Has(name)) return otherwise;
    if (!object_[name].is_boolean())
      return Fail(name, "is not true or false: ", object_[name].dump()), otherwise;
    return object_[name].get<bool>();
  }

  std::string String(const char* name, const char* otherwise) {
    if (!Has(name)) return otherwise;
    if (!object_[name].is_string()) return Fail(name, "is not a string: ", object_[name].dump()), otherwise;
    return object_[name].get<std::string>();
  }

  // One id or a list of ids.
  std::vector<TokenId> TokenIds(const char* name, int vocab_size) {
    std::vector<TokenId> ids;
    if (!Has(name)) return ids;
    const Json& value = object_[name];
    for (const Json& id : value.is_array() ? value : Json::array({value})) {
      if (!id.is_number_integer() || id < 0 || id >= vocab_size) {
        return Fail(name, "is not a token id in [0, ", vocab_size, "): ", id.dump()), ids;
      }
      ids.push_back(id.get<TokenId>());
    }
    return ids;
  }

  template <typename... Parts>
  void Fail(absl::string_view name, const Parts&... parts) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(absl::StrCat(path_, ": ", prefix_, name, " ", parts...));
    }
  }

  const absl::Status& status() const { return status_; }

 private:
  const std::string path_;
  const std::string prefix_;
  const Json& object_;
  absl::Status status_;
};

absl::StatusOr<Json> ReadObject(const std::string& path) {
  std::ifstream stream(path);
  if (!stream) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  Json json = Json::parse(stream, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": not a JSON object"));
  return json;
}

// What would make this another model than the one the forward pass computes.
void RefuseUnsupported(FieldReader& fields) {
  if (fields.String("model_type", "") != "llama") {
    fields.Fail("model_type", "is not \"llama\", the only one supported");
  }
  if (fields.Has("architectures") && fields.At("architectures") != Json::array({"LlamaForCausalLM"})) {
    fields.Fail("architectures", "is not [\"LlamaForCausalLM\"]: ", fields.At("architectures").dump());
  }
  if (fields.String("hidden_act", "silu") != "silu") {
    fields.Fail("hidden_act", "is not \"silu\": ", fields.At("hidden_act").dump());
  }
  for (const char* name : {"attention_bias", "mlp_bias"}) {
    if (fields.Bool(name, false)) fields.Fail(name, "is true: biases are not supported");
  }
  if (fields.Has("quantization_config"))
    fields.Fail("quantization_config", "is set: quantised weights are not supported");
}

// Both spellings: `rope_theta` beside `rope_scaling`, and everything inside `rope_parameters` (transformers
// 5).
absl::Status ReadRope(const std::string& path, FieldReader& fields, ModelConfig& config) {
  if (fields.Has("rope_theta")) config.rope_theta = fields.Positive("rope_theta");
  for (const char* spelling : {"rope_scaling", "rope_parameters"}) {
    if (!fields.Has(spelling)) continue;
    const Json& object = fields.At(spelling);
    if (!object.is_object()) {
      fields.Fail(spelling, "is not an object");
      return fields.status();
    }
    FieldReader rope(path, absl::StrCat(spelling, "."), object);
    if (rope.Has("rope_theta")) config.rope_theta = rope.Positive("rope_theta");
    const char* type_name = rope.Has("rope_type") ? "rope_type" : "type";
    const std::string type = rope.String(type_name, "default");
    if (type == "llama3") {
      Llama3RopeScaling scaling;
      scaling.factor = rope.Positive("factor");
      scaling.low_freq_factor = rope.Positive("low_freq_factor");
      scaling.high_freq_factor = rope.Positive("high_freq_factor");
      scaling.original_max_position_embeddings = rope.Int("original_max_position_embeddings", 1);
      if (scaling.high_freq_factor <= scaling.low_freq_factor) {
        rope.Fail("high_freq_factor", "is not above low_freq_factor");
      }
      config.rope_scaling = scaling;
    } else if (type != "default") {
      rope.Fail(type_name, "is neither \"default\" nor \"llama3\": \"", type, "\"");
    }
    if (!rope.status().ok()) return rope.status();
  }
  return fields.status();
}

}  // namespace

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& model_dir) {
  const std::string path = absl::StrCat(model_dir, "/config.json");
  absl::StatusOr<Json> json = ReadObject(path);
  if (!json.ok()) return json.status();
  FieldReader fields(path, "", *json);
  RefuseUnsupported(fields);

  ModelConfig config;
  config.vocab_size = fields.Int("vocab_size", 1);
  config.hidden_size = fields.Int("hidden_size", 2, 1 << 20);
  config.intermediate_size = fields.Int("intermediate_size", 2, 1 << 24);
  config.layers = fields.Int("num_hidden_layers", 1, 1 << 16);
  config.heads = fields.Int("num_attention_heads", 1, 1 << 16);
  config.kv_heads = fields.Has("num_key_value_heads") ? fields.Int("num_key_value_heads", 1) : config.heads;
  config.max_position_embeddings = fields.Int("max_position_embeddings", 1);
  config.rms_norm_eps = fields.Positive("rms_norm_eps");
  config.tie_word_embeddings = fields.Bool("tie_word_embeddings", false);
  config.dtype = fields.String(fields.Has("dtype") ? "dtype" : "torch_dtype", "");
  if (!fields.status().ok()) return fields.status();

  if (config.heads % config.kv_heads != 0)
    fields.Fail("num_key_value_heads", "does not divide num_attention_heads");
  if (fields.Has("head_dim")) {
    config.head_dim = fields.Int("head_dim", 2, 1 << 12);
  } else {
    if (config.hidden_size % config.heads != 0)
      fields.Fail("num_attention_heads", "does not divide hidden_size");
    config.head_dim = config.hidden_size / config.heads;
  }
  if (config.head_dim % 2 != 0) fields.Fail("head_dim", "is odd: ", config.head_dim);
  if (config.hidden_size % 2 != 0) fields.Fail("hidden_size", "is odd: ", config.hidden_size);
  if (config.intermediate_size % 2 != 0)
    fields.Fail("intermediate_size", "is odd: ", config.intermediate_size);
  if (absl::Status status = ReadRope(path, fields, config); !status.ok()) return status;

  const std::vector<TokenId> bos = fields.TokenIds("bos_token_id", config.vocab_size);
  if (!bos.empty()) config.bos_token_id = bos[0];
  config.eos_token_ids = fields.TokenIds("eos_token_id", config.vocab_size);
  if (!fields.status().ok()) return fields.status();

  const std::string generation_path = absl::StrCat(model_dir, "/generation_config.json");
  std::error_code ignored;
  if (std::filesystem::exists(generation_path, ignored)) {
    absl::StatusOr<Json> generation_json = ReadObject(generation_path);
    if (!generation_json.ok()) return generation_json.status();
    FieldReader generation(generation_path, "", *generation_json);
    if (generation.Has("eos_token_id")) {
      config.eos_token_ids = generation.TokenIds("eos_token_id", config.vocab_size);
    }
    if (!generation.status().ok()) return generation.status();
  }
  return config;
}

}  // namespace outrider
