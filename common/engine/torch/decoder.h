// A decoder on libtorch's tensors: its weights, its cache and its forward pass.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/engine/decoder/decoder_config.h"
#include "common/engine/decoder/tensor_source.h"
#include "common/engine/runner_options.h"
#include "common/engine/torch/rank_group.h"
#include "common/engine/torch/step.h"
#include "common/kv/block_id.h"

namespace outrider::libtorch {

// A rank's share of a model that several processes share (RankGroup).
struct Share {
  int rank = 0;
  int of = 1;
};

// In a share, the outputs of qkv and gate_up are only the share's heads and columns. The other two matrices
// have only the inputs that come from these.
//
// Matrices are [outputs, inputs]. Matrices and biases have the dtype and device that LoadWeights was given.
// Norms are float32 and hold the factors themselves (spec.norms_plus_one is applied).
struct LayerWeights {
  at::Tensor attention_norm;  // [hidden]; undefined in the first layer unless spec.outer_norms
  at::Tensor qkv;             // queries, keys, values of all heads
  at::Tensor qkv_bias;        // [columns of qkv]; undefined unless spec.qkv_bias
  at::Tensor query_norm;      // [head_dim]; both undefined unless spec.qk_norm
  at::Tensor key_norm;
  at::Tensor attention_out;
  at::Tensor attention_out_norm;  // [hidden]; undefined unless spec.output_norms
  at::Tensor mlp_norm;            // [hidden]
  at::Tensor gate_up;             // all of gate, then all of up
  at::Tensor mlp_out;
  at::Tensor mlp_out_norm;  // [hidden]; undefined unless spec.output_norms
};

struct Weights {
  at::Tensor embedding;  // [vocab, hidden]; undefined unless spec.outer_norms, as are final_norm and head
  std::vector<LayerWeights> layers;
  at::Tensor final_norm;  // [hidden]
  // [vocab, hidden]; rows of the embedding itself if they are tied. A share has the rows from rank *
  // ceil(vocab / of) on, at most ceil(vocab / of) of them.
  at::Tensor head;
  size_t bytes = 0;  // of all but the embedding
};

// A stored tensor as one of libtorch's, without a copy.
at::Tensor ViewOf(const TensorView& stored);

// Copies a share of the weights. `share.of` must divide the numbers of heads, KV heads and MLP columns.
// Errors are those of the source. Throws c10::Error if there is not enough memory. `progress` may be null.
absl::StatusOr<Weights> LoadWeights(const TensorSource& source, const DecoderConfig& spec, const Share& share,
                                    const at::TensorOptions& options,
                                    const std::function<void(double)>& progress);

// One tensor [blocks, layers, 2, kv_heads, block_size, head_dim]: a block is contiguous, and holds the keys
// and the values of its tokens in all layers. Functions throw c10::Error if the device fails.
class PagedCache {
 public:
  // `options` give dtype and device. RESOURCE_EXHAUSTED if the pool does not fit the memory.
  static absl::StatusOr<PagedCache> Create(const DecoderConfig& spec, int blocks, int block_size,
                                           const at::TensorOptions& options);

  // Stores keys and values [rows, kv_heads, head_dim] in the slots `slots` of the blocks `blocks`, both
  // [rows].
  void Store(int layer, const at::Tensor& blocks, const at::Tensor& slots, const at::Tensor& keys,
             const at::Tensor& values);
  // The keys and the values in the blocks of a table [sequences, blocks]: [sequences, kv_heads, blocks *
  // block_size, head_dim] each. They are 0 where `unwritten` [sequences, 1, blocks * block_size, 1] is true:
  // another sequence may have left NaN there, which no mask hides.
  std::pair<at::Tensor, at::Tensor> Gather(int layer, const at::Tensor& table,
                                           const at::Tensor& unwritten) const;

  void CopyBlock(BlockId from, BlockId to);
  // See Model::MoveSlots.
  void MoveSlots(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves);
  // See Model::ReadSlot.
  void ReadSlot(BlockId block, int slot, absl::Span<float> values) const;

  int blocks() const { return static_cast<int>(pool_.size(0)); }
  int block_size() const { return static_cast<int>(pool_.size(4)); }
  static size_t BlockBytes(const DecoderConfig& spec, int block_size, const at::TensorOptions& options);

 private:
  explicit PagedCache(at::Tensor pool) : pool_(std::move(pool)) {}

  at::Tensor pool_;
};

// Computes on any device, in the weights' dtype; the residual stream, norms and rotations are float32.
// Functions throw c10::Error if the device fails. Not thread-safe.
class Decoder {
 public:
  // `ranks` share the model and must outlive the decoder; null: this process has all of the model. `spec`
  // describes this rank's share, except for the vocabulary. `observe` is called with the rows of each stage
  // and may be null. With an observer, a step cannot be captured.
  Decoder(const DecoderConfig& spec, Weights weights, PagedCache cache, RankGroup* ranks,
          std::function<void(const StageOutput& output)> observe);

  // Stores the rows' keys and values in the cache, and returns the wanted logits, float32 [wanted, vocab]. On
  // ranks other than 0, the result is meaningless. Sets `hidden`, if not null, to the wanted hidden states,
  // float32 [wanted, columns] as in HiddenView.
  at::Tensor Forward(const Step& step, at::Tensor* hidden = nullptr);
  // The embeddings of tokens [rows]: float32 [rows, hidden].
  at::Tensor Embed(const at::Tensor& tokens) const;
  // The logits of the head's input rows: float32 [rows, vocab] for float32 [rows, hidden].
  at::Tensor Logits(const at::Tensor& x) const;

  PagedCache& cache() { return cache_; }
  const PagedCache& cache() const { return cache_; }
  const Weights& weights() const { return weights_; }
  const DecoderConfig& spec() const { return spec_; }

 private:
  // Cosines and sines of the rows' positions, [rows, 1, head_dim / 2] each.
  struct Angles {
    at::Tensor cosines, sines;
  };

  // The residual stream before layer 0. Without an embedding, the step gives all of its rows.
  at::Tensor EmbedRows(const Step& step) const;
  Angles AnglesOf(const at::Tensor& positions, const at::Tensor& inverse_frequencies) const;
  // The residual stream after a layer. x: [rows, hidden], before it.
  at::Tensor Layer(int layer, at::Tensor x, const Angles& angles, const Step& step);
  // Attention of queries [rows, heads, head_dim] over the cache: [rows, heads * head_dim].
  at::Tensor Attend(int layer, const at::Tensor& queries, const Step& step) const;
  void Observe(absl::string_view stage, int layer, const at::Tensor& rows) const;
  // Sums the outputs of all ranks' shares of a layer.
  at::Tensor SumOverRanks(const at::Tensor& share) const { return ranks_ ? ranks_->Sum(share) : share; }
  // The RMS norm in float32 over the last dimension; x itself if the weight is undefined.
  at::Tensor Normalize(const at::Tensor& x, const at::Tensor& weight) const;
  at::Tensor ToOperand(const at::Tensor& x) const { return x.to(weights_.layers[0].qkv.scalar_type()); }

  const DecoderConfig spec_;
  const Weights weights_;
  PagedCache cache_;
  RankGroup* const ranks_;
  const std::function<void(const StageOutput& output)> observe_;
  at::Tensor inverse_frequencies_;          // [head_dim / 2], float32
  at::Tensor sliding_inverse_frequencies_;  // the same for layers that slide
};

}  // namespace outrider::libtorch
