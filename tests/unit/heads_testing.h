// Files with random weights of the proposers of the target kTreeModel itself.
#pragma once

#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/temporary_folder.h"
#include "common/engine/sequence_params.h"
#include "common/spec/types.h"

namespace outrider::testing {

// The target's sizes.
inline constexpr int kHeadHidden = 64;
inline constexpr int kHeadVocab = 256;

struct HeadTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

inline HeadTensor Filled(std::vector<int64_t> shape, float value) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return {std::move(shape), std::vector<float>(static_cast<size_t>(count), value)};
}
// Normal numbers with this standard deviation.
inline HeadTensor Random(std::vector<int64_t> shape, float deviation, std::mt19937& random) {
  HeadTensor tensor = Filled(std::move(shape), 0);
  std::normal_distribution<float> normal(0, deviation);
  for (float& value : tensor.values) value = normal(random);
  return tensor;
}

// The files of a folder of heads.
struct HeadFiles {
  nlohmann::json config;
  std::map<std::string, HeadTensor> tensors = {};
  std::map<std::string, std::vector<int64_t>> integers = {};  // further tensors, of shape [*]

  void WriteTo(const std::string& dir) const {
    std::ofstream(dir + "/config.json") << config;
    if (tensors.empty()) return;
    nlohmann::json header;
    std::string data;
    const auto add = [&](const std::string& name, const char* type, const std::vector<int64_t>& shape,
                         const auto& values) {
      const size_t begin = data.size();
      data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
      header[name] = {{"dtype", type}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
    };
    // Integers come first, where they are aligned.
    for (const auto& [name, values] : integers)
      add(name, "I64", {static_cast<int64_t>(values.size())}, values);
    for (const auto& [name, tensor] : tensors) add(name, "F32", tensor.shape, tensor.values);
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const uint64_t length = text.size();
    std::ofstream(dir + "/model.safetensors", std::ios::binary)
        << std::string(reinterpret_cast<const char*>(&length), sizeof(length)) << text << data;
  }
};

// Residual blocks as in Medusa, or two matrices as in Stern et al., for each head.
inline HeadFiles MedusaFiles(int heads, int layers, std::mt19937& random) {
  HeadFiles files{{{"proposer", "medusa"}, {"medusa_num_heads", heads}, {"medusa_num_layers", layers}}};
  for (int i = 0; i < heads; ++i) {
    for (int layer = 0; layer < layers; ++layer) {
      const std::string linear = absl::StrCat(i, ".", layer, ".linear.");
      files.tensors[linear + "weight"] = Random({kHeadHidden, kHeadHidden}, 0.2f, random);
      files.tensors[linear + "bias"] = Random({kHeadHidden}, 0.2f, random);
    }
  }
  return files;
}
inline HeadFiles BlockwiseFiles(int heads, int inner, std::mt19937& random) {
  HeadFiles files{{{"proposer", "blockwise"}, {"num_heads", heads}, {"intermediate_size", inner}}};
  for (int i = 0; i < heads; ++i) {
    files.tensors[absl::StrCat(i, ".0.weight")] = Random({inner, kHeadHidden}, 0.2f, random);
    files.tensors[absl::StrCat(i, ".0.bias")] = Random({inner}, 0.2f, random);
    files.tensors[absl::StrCat(i, ".2.weight")] = Random({kHeadHidden, inner}, 0.2f, random);
    files.tensors[absl::StrCat(i, ".2.bias")] = Random({kHeadHidden}, 0.2f, random);
  }
  return files;
}

// A layer with fewer key heads than query heads, whose attention reads `attended` columns.
inline HeadFiles EagleLayerFiles(const std::string& layer, int attended, std::mt19937& random) {
  constexpr int kInner = 96, kHeads = 4, kKeyHeads = 2, kHeadDim = 16;
  HeadFiles files{{{"proposer", "eagle"},
                   {"intermediate_size", kInner},
                   {"num_attention_heads", kHeads},
                   {"num_key_value_heads", kKeyHeads},
                   {"head_dim", kHeadDim},
                   {"rms_norm_eps", 1e-5},
                   {"rope_theta", 10000.0}}};
  for (const auto& [name, rows, columns] : {std::tuple("self_attn.q_proj", kHeads * kHeadDim, attended),
                                            {"self_attn.k_proj", kKeyHeads * kHeadDim, attended},
                                            {"self_attn.v_proj", kKeyHeads * kHeadDim, attended},
                                            {"self_attn.o_proj", kHeadHidden, kHeads * kHeadDim},
                                            {"mlp.gate_proj", kInner, kHeadHidden},
                                            {"mlp.up_proj", kInner, kHeadHidden},
                                            {"mlp.down_proj", kHeadHidden, kInner}}) {
    files.tensors[layer + name + ".weight"] = Random({rows, columns}, 0.2f, random);
  }
  files.tensors[layer + "post_attention_layernorm.weight"] = Filled({kHeadHidden}, 1);
  return files;
}
inline HeadFiles EagleFiles(std::mt19937& random) {
  HeadFiles files = EagleLayerFiles("layers.0.", kHeadHidden, random);
  files.tensors["fc.weight"] = Random({kHeadHidden, 2 * kHeadHidden}, 0.15f, random);
  return files;
}

// The same files for a draft that knows these tokens only, which are in ascending order.
inline HeadFiles WithVocabulary(HeadFiles files, const std::vector<TokenId>& tokens) {
  files.config["draft_vocab_size"] = tokens.size();
  std::vector<int64_t>& offsets = files.integers["d2t"];
  offsets.clear();
  for (size_t i = 0; i < tokens.size(); ++i) offsets.push_back(tokens[i] - static_cast<int64_t>(i));
  return files;
}

// EAGLE-3 with every second token as its vocabulary.
inline HeadFiles Eagle3Files(std::mt19937& random) {
  HeadFiles files = EagleLayerFiles("midlayer.", 2 * kHeadHidden, random);
  files.config["eagle_version"] = 3;
  files.config["feature_layers"] = {1, 1, 2};
  files.tensors["fc.weight"] = Random({kHeadHidden, 3 * kHeadHidden}, 0.15f, random);
  for (const char* norm : {"midlayer.input_layernorm", "midlayer.hidden_norm", "norm"}) {
    files.tensors[absl::StrCat(norm, ".weight")] = Random({kHeadHidden}, 1, random);
  }
  std::vector<TokenId> tokens;
  for (TokenId token = 0; token < kHeadVocab; token += 2) tokens.push_back(token);
  files.tensors["lm_head.weight"] = Random({kHeadVocab / 2, kHeadHidden}, 0.3f, random);
  return WithVocabulary(std::move(files), tokens);
}

inline HeadFiles LayerSkipFiles(int layers) { return {{{"proposer", "layer_skip"}, {"exit_layer", layers}}}; }

inline HeadFiles LookAheadFiles(int tokens, std::mt19937& random) {
  HeadFiles files{{{"proposer", "pass"}, {"lookahead_tokens", tokens}}};
  files.tensors["lookahead.weight"] = Random({tokens, kHeadHidden}, 0.3f, random);
  return files;
}

// The files of each kind of proposer, in the order of the kinds.
inline std::vector<HeadFiles> HeadsOfAllKinds(uint32_t seed, bool eagle3 = false) {
  std::mt19937 random(seed);
  return {MedusaFiles(4, 1, random), BlockwiseFiles(4, 48, random),
          eagle3 ? Eagle3Files(random) : EagleFiles(random), LayerSkipFiles(1), LookAheadFiles(3, random)};
}

// Temporary folders with these files.
class HeadFolders {
 public:
  explicit HeadFolders(const std::vector<HeadFiles>& all) : folders_(all.size()) {
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].WriteTo(folders_[i].path());
      paths_.push_back(folders_[i].path());
    }
  }
  const std::vector<std::string>& paths() const { return paths_; }

 private:
  std::vector<TemporaryFolder> folders_;
  std::vector<std::string> paths_;
};

}  // namespace outrider::testing
