#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/engine/decoder/field_reader.h"
#include "common/engine/decoder/gguf_model.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

// The keys of one architecture, which begin with its name.
class Keys {
 public:
  Keys(FieldReader& fields, std::string architecture)
      : fields_(fields), architecture_(std::move(architecture)) {}

  bool Has(const char* name) const { return fields_.Has(Key(name).c_str()); }
  int Int(const char* name, int low, int high = std::numeric_limits<int>::max()) {
    return fields_.Int(Key(name).c_str(), low, high);
  }
  int IntOr(const char* name, int otherwise, int low) { return Has(name) ? Int(name, low) : otherwise; }
  double Positive(const char* name) { return fields_.Positive(Key(name).c_str()); }
  double PositiveOr(const char* name, double otherwise) { return Has(name) ? Positive(name) : otherwise; }
  std::string String(const char* name, const char* otherwise) {
    return fields_.String(Key(name).c_str(), otherwise);
  }
  const nlohmann::json& At(const char* name) const { return fields_.At(Key(name).c_str()); }
  template <class... Parts>
  void Fail(const char* name, const Parts&... parts) {
    fields_.Fail(Key(name), parts...);
  }

 private:
  std::string Key(const char* name) const { return absl::StrCat(architecture_, ".", name); }

  FieldReader& fields_;
  const std::string architecture_;
};

void ReadRope(Keys& keys, const GgufFile& file, DecoderConfig& spec) {
  spec.rope_theta = keys.PositiveOr("rope.freq_base", spec.rope_theta);
  if (keys.IntOr("rope.dimension_count", spec.head_dim, 0) != spec.head_dim) {
    keys.Fail("rope.dimension_count", "is not the head's ", spec.head_dim);
  }
  const char* const kType = "rope.scaling.type";
  const std::string type = keys.String(kType, keys.Has("rope.scaling.factor") ? "linear" : "none");
  if (type == "linear") {
    spec.rope_linear_factor = keys.Positive("rope.scaling.factor");
  } else if (type != "none") {
    keys.Fail(kType, "is none of \"none\" and \"linear\": \"", type, "\"");
  }
  const GgufFile::Tensor* const factors = file.Find("rope_freqs.weight");
  if (factors == nullptr) return;
  const size_t pairs = static_cast<size_t>(spec.head_dim / 2);
  spec.rope_factors.resize(pairs);
  if (factors->type == GgufFile::kFloat32 && factors->shape == std::vector<int64_t>{spec.head_dim / 2}) {
    GgufFile::ToFloat(factors->type, factors->data.data(), spec.head_dim / 2, spec.rope_factors.data());
  }
  const auto is_bad = [](float factor) { return !(factor > 0 && std::isfinite(factor)); };
  if (std::any_of(spec.rope_factors.begin(), spec.rope_factors.end(), is_bad)) {
    keys.Fail("rope_freqs.weight", "is no tensor of ", pairs, " positive numbers of type f32");
  }
}

void ReadSizes(Keys& keys, const GgufFile& file, FieldReader& fields, DecoderConfig& spec) {
  const char* const name = "token_embd.weight";
  const GgufFile::Tensor* const embedding = file.Find(name);
  if (embedding == nullptr) {
    fields.Fail(name,
                "is missing; layers alone are named with a model that has the rest: LAYERS.gguf+FILE.gguf");
    return;
  }
  if (embedding->shape.size() != 2 || embedding->shape[0] > kMaxSizes.vocab) {
    fields.Fail(name, "is no tensor of tokens and columns");
    return;
  }
  spec.vocab_size = static_cast<int>(embedding->shape[0]);
  spec.hidden_size = keys.Int("embedding_length", 2, kMaxSizes.hidden);
  spec.intermediate_size = keys.Int("feed_forward_length", 2, kMaxSizes.intermediate);
  spec.layers = keys.Int("block_count", 1, kMaxSizes.layers);
  spec.heads = keys.Int("attention.head_count", 1, kMaxSizes.heads);
  spec.kv_heads = keys.IntOr("attention.head_count_kv", spec.heads, 1);
  spec.max_position_embeddings = keys.Int("context_length", 1);
  spec.rms_norm_eps = keys.Positive("attention.layer_norm_rms_epsilon");
  spec.tie_word_embeddings = file.Find("output.weight") == nullptr;
  if (keys.IntOr("expert_count", 0, 0) > 0) keys.Fail("expert_count", "is not 0: experts are not supported");
  if (!fields.status().ok()) return;
  spec.head_dim = keys.Has("attention.key_length") ? keys.Int("attention.key_length", 2, kMaxSizes.head_dim)
                                                   : spec.hidden_size / spec.heads;
  if (keys.IntOr("attention.value_length", spec.head_dim, 1) != spec.head_dim) {
    keys.Fail("attention.value_length", "is not attention.key_length");
  }
  if (spec.heads % spec.kv_heads != 0) {
    keys.Fail("attention.head_count_kv", "does not divide attention.head_count");
  }
  if (spec.head_dim % 2 != 0) keys.Fail("attention.key_length", "is odd: ", spec.head_dim);
  if (spec.hidden_size % 2 != 0) keys.Fail("embedding_length", "is odd: ", spec.hidden_size);
  if (spec.intermediate_size % 2 != 0) {
    keys.Fail("feed_forward_length", "is odd: ", spec.intermediate_size);
  }
  if (fields.status().ok()) ReadRope(keys, file, spec);
}

// Reads the window and the period, by default these. Every `period`-th layer does not slide; 0: all slide.
void ReadSliding(Keys& keys, DecoderConfig& spec, int window, int period) {
  spec.sliding_window = keys.IntOr("attention.sliding_window", window, 0);
  if (spec.sliding_window == 0) return;
  const char* const kPattern = "attention.sliding_window_pattern";
  if (!keys.Has(kPattern) || !keys.At(kPattern).is_array()) {
    period = keys.IntOr(kPattern, period, 1);
    for (int i = 1; i <= spec.layers; ++i) spec.slides.push_back(period == 0 || i % period != 0);
    return;
  }
  for (const nlohmann::json& slides : keys.At(kPattern)) spec.slides.push_back(slides == true);
  if (static_cast<int>(spec.slides.size()) != spec.layers)
    keys.Fail(kPattern, "is no list of block_count layers");
}

// --- The architectures ---

void ReadLlama(Keys& keys, DecoderConfig& spec) {
  if (keys.Has("attention.sliding_window")) ReadSliding(keys, spec, 0, 0);
}

void ReadQwen2(Keys& /*keys*/, DecoderConfig& spec) { spec.qkv_bias = true; }

void ReadQwen3(Keys& /*keys*/, DecoderConfig& spec) { spec.qk_norm = true; }

// `largest`: layers of the family's largest model, which scales queries differently though no key says so.
void ReadGemma(Keys& keys, DecoderConfig& spec, int largest) {
  spec.activation = Activation::kGeluTanh;
  spec.output_norms = true;  // norms_plus_one stays false: the file has the norms with the 1 added
  spec.embedding_scale = std::sqrt(static_cast<double>(spec.hidden_size));
  const int scale = spec.layers == largest ? spec.hidden_size / spec.heads : spec.head_dim;
  spec.query_scale = 1 / std::sqrt(static_cast<double>(scale));
  if (keys.Has("final_logit_softcapping")) spec.final_softcap = keys.Positive("final_logit_softcapping");
  if (keys.Has("attn_logit_softcapping")) spec.attention_softcap = keys.Positive("attn_logit_softcapping");
}

void ReadGemma2(Keys& keys, DecoderConfig& spec) {
  ReadGemma(keys, spec, 46);
  ReadSliding(keys, spec, 4096, 2);
}

void ReadGemma3(Keys& keys, DecoderConfig& spec) {
  ReadGemma(keys, spec, 62);
  ReadSliding(keys, spec, 0, 6);
  spec.sliding_rope_theta = keys.PositiveOr("rope.freq_base_swa", 1e4);
  spec.qk_norm = true;
}

struct Architecture {
  const char* name;
  void (*read)(Keys& keys, DecoderConfig& spec);
};

constexpr Architecture kArchitectures[] = {{"llama", ReadLlama},
                                           {"qwen2", ReadQwen2},
                                           {"qwen3", ReadQwen3},
                                           {"gemma2", ReadGemma2},
                                           {"gemma3", ReadGemma3}};

DecoderConfig ReadDecoder(FieldReader& fields, const GgufFile& file) {
  constexpr char kArchitecture[] = "general.architecture";
  const std::string name = fields.String(kArchitecture, "");
  DecoderConfig spec;
  for (const Architecture& architecture : kArchitectures) {
    if (name != architecture.name) continue;
    Keys keys(fields, name);
    ReadSizes(keys, file, fields, spec);
    if (fields.status().ok()) architecture.read(keys, spec);
    return spec;
  }
  const auto append = [](std::string* out, const Architecture& architecture) {
    absl::StrAppend(out, architecture.name);
  };
  fields.Fail(kArchitecture, name.empty() ? "is missing" : absl::StrCat("is \"", name, "\""),
              "; supported: ", absl::StrJoin(kArchitectures, ", ", append));
  return spec;
}

// --- End-of-sequence ids ---

constexpr int kControl = 3;  // in tokenizer.ggml.token_type
// The control tokens that end a turn or a text, by their names in models' vocabularies.
constexpr const char* kEnds[] = {"<|eot_id|>",    "<|im_end|>",      "<|end|>",    "<end_of_turn>",
                                 "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>", "<EOT>"};

std::vector<TokenId> ReadEosTokenIds(FieldReader& fields, const GgufFile& file, int vocab) {
  std::set<TokenId> ends;
  for (const char* key : {"eos", "eot", "eom"}) {
    const std::vector<TokenId> ids =
        fields.TokenIds(absl::StrCat("tokenizer.ggml.", key, "_token_id").c_str(), vocab);
    ends.insert(ids.begin(), ids.end());
  }
  const nlohmann::json types = file.Value("tokenizer.ggml.token_type");
  for (const char* name : kEnds) {
    const int64_t id = file.FindString("tokenizer.ggml.tokens", name);
    const size_t at = static_cast<size_t>(id);
    if (id >= 0 && id < vocab && types.is_array() && at < types.size() && types[at] == kControl) {
      ends.insert(static_cast<TokenId>(id));
    }
  }
  return {ends.begin(), ends.end()};
}

}  // namespace

absl::StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& file) {
  FieldReader fields(file.path(), file.metadata());
  ModelConfig config;
  config.decoder = ReadDecoder(fields, file);
  OUTRIDER_TRY(fields.status());
  const int vocab = config.decoder.vocab_size;
  config.bos_token_id = fields.FirstTokenId("tokenizer.ggml.bos_token_id", vocab);
  config.mask_token_id = fields.FirstTokenId("tokenizer.ggml.mask_token_id", vocab);
  config.eos_token_ids = ReadEosTokenIds(fields, file, vocab);
  OUTRIDER_TRY(fields.status());
  std::set<std::string> packed, no_blocks;
  for (const auto& [name, tensor] : file.tensors()) {
    if (!GgufFile::IsPacked(tensor.type)) continue;
    packed.insert(GgufFile::TypeName(tensor.type));
    if (!GgufTensors::HasBlocks(tensor.type)) no_blocks.insert(GgufFile::TypeName(tensor.type));
  }
  config.packed = absl::StrJoin(packed, ", ");
  config.no_blocks = absl::StrJoin(no_blocks, ", ");
  return config;
}

}  // namespace outrider
