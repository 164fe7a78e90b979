// A folder of heads, for the loaders of proposers (load.h).
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/engine/decoder/decoder_config.h"
#include "common/engine/decoder/field_reader.h"
#include "common/engine/decoder/model_config.h"
#include "common/engine/decoder/safetensors.h"
#include "common/engine/decoder/tensor_source.h"
#include "common/engine/model.h"
#include "common/engine/proposers/load.h"
#include "common/engine/proposers/proposer.h"
#include "common/spec/types.h"

namespace outrider {

// A folder, its config and its target.
struct HeadFolder {
  const std::string& dir;
  FieldReader& fields;  // of config.json
  const ProposerTarget& target;

  int hidden() const { return target.decoder.hidden_size; }
  int vocab() const { return target.decoder.vocab_size; }
};

// Reads the inner size, which must be even for Matrix::Multiply.
inline int ReadInner(FieldReader& fields) {
  const int inner = fields.Int("intermediate_size", 2, kMaxSizes.intermediate);
  if (inner % 2 != 0) fields.Fail("intermediate_size", "is odd: ", inner);
  return inner;
}

// Checks that the config's sizes, where it has them, are the target's.
inline void CheckSizes(FieldReader& fields, const DecoderConfig& target) {
  const std::pair<const char*, int> sizes[] = {{"hidden_size", target.hidden_size},
                                               {"target_hidden_size", target.hidden_size},
                                               {"vocab_size", target.vocab_size}};
  for (const auto& [name, wanted] : sizes) {
    if (!fields.Has(name)) continue;
    if (const int size = fields.Int(name, 1); size != wanted && fields.status().ok()) {
      fields.Fail(name, size, ", but the target's is ", wanted);
    }
  }
}

// Reads the tensors of a folder for its target. Keeps the first error, which names file and tensor; later
// results are meaningless.
class HeadWeights {
 public:
  // Opens the folder's files. The target's model must outlive it.
  explicit HeadWeights(const HeadFolder& folder) : model_(folder.target.model) {
    absl::StatusOr<SafeTensors> opened = SafeTensors::Open(folder.dir);
    status_ = opened.status();
    if (opened.ok()) tensors_ = *std::move(opened);
  }

  bool Has(const std::string& name) const { return tensors_.Find(name) != nullptr; }
  // 0 if there is no such tensor.
  int64_t RowsOf(const std::string& name) const {
    const SafeTensors::Stored* stored = tensors_.Find(name);
    return stored == nullptr || stored->shape.empty() ? 0 : stored->shape[0];
  }

  std::vector<float> Values(const std::string& name, const std::vector<int64_t>& shape) {
    const TensorView view = tensors_.Get(name, shape, status_);
    return status_.ok() ? AllElements(view) : std::vector<float>();
  }
  // Reads int64 offsets [count]. Returns the ids i + offset[i], which must ascend within [0, vocab).
  std::vector<TokenId> Ids(const std::string& name, int64_t count, int vocab) {
    if (!status_.ok()) return {};
    const absl::StatusOr<absl::string_view> bytes = tensors_.GetBytes(name, "I64", {count});
    status_ = bytes.status();
    if (!status_.ok()) return {};
    const auto refuse = [&](const auto&... parts) {
      status_ = tensors_.Refuse(name, absl::StrCat(parts...));
      return std::vector<TokenId>();
    };
    if (count == 0) return refuse("names no token");
    std::vector<TokenId> ids;
    for (int64_t i = 0; i < count; ++i) {
      int64_t offset = 0;
      std::memcpy(&offset, bytes->data() + i * 8, sizeof(offset));
      if (offset < -i || offset >= vocab - i) {
        return refuse("offset ", offset, " of token ", i, " leads out of [0, ", vocab, ")");
      }
      const TokenId id = static_cast<TokenId>(i + offset);
      if (!ids.empty() && id <= ids.back()) {
        return refuse("token ", i, " is ", id, ", after ", ids.back(), ": they must ascend");
      }
      ids.push_back(id);
    }
    return ids;
  }
  std::unique_ptr<Matrix> Load(const std::string& name, int64_t n, int64_t k) {
    return Load(tensors_.Get(name, {n, k}));
  }
  std::unique_ptr<Matrix> Load(const absl::StatusOr<TensorView>& view) {
    status_.Update(view.status());
    if (!status_.ok()) return nullptr;
    absl::StatusOr<std::unique_ptr<Matrix>> matrix = model_.LoadMatrix(*view);
    status_ = matrix.status();
    return matrix.ok() ? *std::move(matrix) : nullptr;
  }

  const SafeTensors& tensors() const { return tensors_; }
  const absl::Status& status() const { return status_; }

 private:
  SafeTensors tensors_;
  Model& model_;
  absl::Status status_;
};

// EAGLE and EAGLE-3 (eagle.h) are loaded from published layouts (load_eagle.cc).
//
// The layout of the authors' releases (github.com/SafeAILab/EAGLE: eagle/model/cnets1.py, cnets.py) is also
// Outrider's own: the config of a Llama with one layer, and the tensors
//
//   EAGLE    fc.weight [hidden, 2 hidden], fc.bias if there is one, layers.0.* without input_layernorm
//   EAGLE-3  fc.weight [hidden, 3 hidden], midlayer.* with hidden_norm, and projections to queries, keys and
//            values of 2 hidden columns; norm.weight
//   both     lm_head.weight [draft_vocab_size, hidden], d2t [draft_vocab_size]: see ReadHead; t2d, which says
//            the same as d2t, and copies of the target's embedding are not read
//
// Config fields besides a Llama's: draft_vocab_size, norm_before_residual; in Outrider's own also
// eagle_version, 1 or 3, and feature_layers, which others call eagle_aux_hidden_state_layer_ids.
//
// The layout of "speculators" (github.com/vllm-project/speculators: src/speculators/models/eagle.py,
// eagle3.py, and vLLM's vllm/model_executor/models/llama_eagle.py, llama_eagle3.py) has the Llama's fields in
// transformer_layer_config, speculators_model_type "eagle" or "eagle3", and other names:
//
//   eagle    fusion_fc.weight; fusion_fc.bias if fusion_bias is true; transformer.*
//   eagle3   layers.0.* in place of midlayer.*

// Reads the layer as a decoder. INVALID_ARGUMENT, naming file and field.
absl::StatusOr<DecoderConfig> ReadEagleConfig(FieldReader& fields, const DecoderConfig& target);

// Errors are those of LoadProposers.
absl::StatusOr<std::unique_ptr<Proposer>> LoadEagle(const HeadFolder& folder);

}  // namespace outrider
