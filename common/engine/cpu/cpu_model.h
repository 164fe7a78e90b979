// The forward pass of a decoder on the CPU, over a ragged batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/engine/cpu/cpu_weights.h"
#include "common/engine/cpu/kernels.h"
#include "common/engine/cpu/product.h"
#include "common/engine/cpu/step_rows.h"
#include "common/engine/decoder/decoder_config.h"
#include "common/engine/memory.h"
#include "common/engine/model.h"
#include "common/engine/runner_options.h"
#include "common/engine/thread_pool.h"

namespace outrider {

// The layout of layer 0 of a KV pool, without its address. All layers take equal parts of a block.
KvLayer LayOutKv(const DecoderConfig& spec, Storage storage, int block_size);

// Owns the KV pool ([block][layer][keys, values], so that a block is contiguous) and the scratch memory of a
// step. Uses other threads inside Forward only.
class CpuModel final : public Model {
 public:
  // options.kv_blocks is not 0. `kernels` and `thread_pool` must outlive the model. RESOURCE_EXHAUSTED if
  // there is not enough memory.
  static absl::StatusOr<std::unique_ptr<CpuModel>> Create(const DecoderConfig& spec, CpuWeights weights,
                                                          const RunnerOptions& options,
                                                          const Kernels& kernels, ThreadPool& thread_pool);

  absl::StatusOr<LogitsView> Forward(absl::Span<const SequenceRows> batch, const PassOptions& pass) override;
  void CopyBlock(BlockId from, BlockId to) override;
  void MoveSlots(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves) override;
  absl::Status ReadSlot(BlockId block, int slot, absl::Span<float> values) override;
  bool has_hidden_states() const override { return true; }
  absl::StatusOr<LogitsView> Project(absl::Span<const float> hidden) override {
    multiplier_.ToOperands(hidden.data(), static_cast<int64_t>(hidden.size()), normalized_.data());
    return MultiplyHead(static_cast<int>(hidden.size()) / spec_.hidden_size);
  }
  absl::Status ReadEmbeddings(absl::Span<const TokenId> tokens, absl::Span<float> to) override;
  absl::StatusOr<std::unique_ptr<Matrix>> LoadMatrix(const TensorView& weights) override {
    return LoadCpuMatrix(weights, weights_.storage, weights_.has_blocks, kernels_, thread_pool_);
  }
  void Wake() override { thread_pool_.Wake(); }

  bool row_invariant() const override { return true; }
  bool tree_row_invariant() const override { return true; }
  std::string dtype() const override {
    constexpr const char* kNames[] = {"float32", "bfloat16", "int8"};  // in the order of Storage
    return weights_.has_blocks ? kPackedDtype : kNames[static_cast<size_t>(weights_.storage)];
  }
  std::string kernel_name() const override { return kernels_.name; }
  int kv_blocks() const override { return options_.kv_blocks; }
  int max_positions() const override { return max_positions_; }
  size_t bytes_per_block() const override { return static_cast<size_t>(kv_.block_bytes); }
  size_t weight_bytes() const override { return weights_.memory.bytes(); }

 private:
  CpuModel(const DecoderConfig& spec, CpuWeights weights, const RunnerOptions& options,
           const Kernels& kernels, ThreadPool& thread_pool);
  absl::Status AllocateMemory();

  // Computes one layer for the listed rows; the last layer of a pass keeps only the wanted rows after its
  // attention.
  void ComputeLayer(int i, bool last);
  void EmbedTokens(absl::Span<const SequenceRows> batch);
  void ReadEmbedding(TokenId token, float* to) const;
  // Replaces EmbedTokens if the batch gives all embeddings. Also sets the operands of layer 0's attention.
  void TakeEmbeddings(absl::Span<const SequenceRows> batch);
  void Attend(int layer);
  // Adds the bias to a row of qkv_ and normalises its heads, if the layer does so.
  void FinishHeads(const CpuLayer& layer, float* qkv) const;
  // Copies the residual stream of the rows whose hidden states are wanted, if there is a tap after `layers`
  // layers. `dropped`: hidden_ has only the kept rows.
  void CopyTaps(absl::Span<const int> taps, int layers, bool dropped);
  // Computes the final norm and the head for the kept rows.
  LogitsView Finish();
  LogitsView MultiplyHead(int rows);
  // Normalizes the residual stream into normalized_. If `weight` is null, only converts it to operands.
  void Normalize(const float* weight, int rows);
  KvLayer LayerOfCache(int layer) const {
    KvLayer kv = kv_;
    kv.base += kv.block_bytes / spec_.layers * layer;
    return kv;
  }
  // Show a stage to the observer, if there is one.
  void ObserveFloats(absl::string_view stage, int layer, int rows, const Buffer& from, int stride,
                     int columns, float scale = 1) const;
  void ObserveOperands(absl::string_view stage, int layer, int rows, const Buffer& from, int columns) const;

  const DecoderConfig spec_;
  const CpuWeights weights_;
  const RunnerOptions options_;
  const Kernels& kernels_;
  ThreadPool& thread_pool_;
  int max_positions_;
  RopeTable rope_;
  KvLayer kv_;  // layer 0
  int qkv_columns_;
  const Multiplier multiplier_;
  StepRows rows_;

  Buffer cache_;
  Buffer hidden_;         // [rows, hidden], the residual stream
  Buffer normalized_;     // [rows, hidden] or, for the first layer, [rows, attention_input], operands
  Buffer qkv_;            // [rows, qkv_columns]
  Buffer attention_out_;  // [rows, heads * head_dim], operands
  Buffer activations_;    // [rows, intermediate], operands
  Buffer logits_;         // [rows, vocab], at most kMaxLogitRows
  Buffer scores_;         // [threads, kMaxQueries, scores_stride]
  int64_t scores_stride_ = 0;
  std::vector<float> hidden_states_;  // the pass's hidden states, [rows, hidden_columns_]
  int hidden_columns_ = 0;
};

}  // namespace outrider
