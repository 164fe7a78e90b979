// The forward pass of a decoder on the device, from tokens to logits, without the host.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/cuda/attention.h"
#include "common/engine/cuda/device_memory.h"
#include "common/engine/cuda/layer_kernels.h"
#include "common/engine/cuda/matmul.h"
#include "common/engine/cuda/stage_observer.h"
#include "common/engine/cuda/weights.h"
#include "common/engine/decoder/decoder_spec.h"
#include "common/kv/block_id.h"

namespace outrider::cuda {

// A part of a pass's attention that was uploaded to a plan of Attention.
struct PlannedAttention {
  int plan;
  AttentionSize size;
  int first_row;
};

// Owns weights, KV pool and scratch memory. Not thread-safe. Everything is enqueued on the stream given to
// Create.
class DecoderLayers {
 public:
  struct Options {
    int block_size;
    int max_rows;
    int max_positions;
    std::function<void(const StageOutput& output)> observe;  // RunnerOptions::observe
  };

  // Creates no KV pool. `matmul` has planned the weights' products. All references and `stream` must outlive
  // this object.
  static absl::StatusOr<std::unique_ptr<DecoderLayers>> Create(const DecoderSpec& spec, Weights weights,
                                                               Operand operand, Matmul& matmul,
                                                               Attention& attention, const Options& options,
                                                               cudaStream_t stream);

  // Before the first pass. RESOURCE_EXHAUSTED if there is not enough memory.
  absl::Status AllocateCache(int kv_blocks);

  // The arguments of a forward pass. Pointers are to device memory.
  struct Pass {
    int rows;                // at most max_rows
    const int32_t* tokens;   // [rows]
    const RowPlace* places;  // [rows]
    std::vector<PlannedAttention> attention;
    int logit_count;            // at most max_rows
    const int32_t* logit_rows;  // [logit_count], rows that need logits; null: the first ones
    float* logits;              // [PaddedRows(logit_count), vocab]
  };

  // Stores the rows' keys and values and computes the logits. Can be captured in a graph, unless it is
  // observed.
  absl::Status Enqueue(const Pass& pass);

  void CopyBlock(BlockId from, BlockId to);
  // As Model::MoveSlots.
  void MoveSlots(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves);
  // As Model::ReadSlot. Waits for the stream.
  absl::Status ReadSlot(BlockId block, int slot, absl::Span<float> values);

  // A block that no sequence uses, for the padding rows of a batch.
  int spare_block() const { return spare_block_; }
  size_t bytes_per_block() const { return block_bytes_; }
  size_t weight_bytes() const { return weights_.bytes; }
  // Bytes per token of a sequence, all layers.
  static size_t KvBytesPerToken(const DecoderSpec& spec);

 private:
  DecoderLayers(const DecoderSpec& spec, Weights weights, Operand operand, Matmul& matmul,
                Attention& attention, const Options& options, cudaStream_t stream);
  absl::Status AllocateMemory();
  absl::Status UploadRope();

  KvLayerView KvOf(int layer) const;
  absl::Status Attend(const Pass& pass, int layer, __nv_bfloat16* out);
  // Where to write the operand of the next product. Its scales are separate from those of the previous
  // operand, which may still be read.
  OperandRows NextOperand();
  // Multiplies the operand by the matrix, into product_.
  absl::StatusOr<Product> Multiply(const Matrix& matrix, int rows);

  const DecoderSpec spec_;
  const Weights weights_;
  const Operand operand_type_;
  Matmul& matmul_;
  Attention& attention_;
  const Options options_;
  const cudaStream_t stream_;
  const StageObserver observer_;
  const HeadShape heads_;
  const size_t block_bytes_;

  DeviceMemory cache_;  // [kv_blocks + 1][layers][keys, values][kv_heads, block_size, head_dim], bfloat16
  DeviceMemory cosines_, sines_;  // [max_positions, head_dim / 2]
  DeviceMemory hidden_;           // [rows, hidden], float32, the residual stream
  DeviceMemory operands_;         // [rows, the widest operand]
  DeviceMemory operand_scales_;   // [2][rows]; fp8 only
  DeviceMemory product_;          // [rows, the widest product], float32
  DeviceMemory queries_;          // [rows, heads * head_dim], bfloat16
  DeviceMemory attention_out_;    // [rows, heads * head_dim], bfloat16
  OperandRows operand_;
  int spare_block_ = 0;
};

}  // namespace outrider::cuda
