// A decoder on the device: its weights, and its forward pass from tokens to logits, without the host.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/engine/cuda/attention.h"
#include "common/engine/cuda/device_memory.h"
#include "common/engine/cuda/layer_kernels.h"
#include "common/engine/cuda/matmul.h"
#include "common/engine/decoder/decoder_config.h"
#include "common/engine/decoder/tensor_source.h"
#include "common/engine/runner_options.h"
#include "common/kv/block_id.h"

namespace outrider::cuda {

// A matrix [n, k] of the operand's type, for matmul.h.
struct Matrix {
  const void* data = nullptr;
  const float* scales = nullptr;  // [n]; fp8 only
  int n = 0;
  int k = 0;
  int plan = 0;  // from Matmul::Plan
};

struct Layer {
  const float* attention_norm = nullptr;  // [hidden]
  Matrix qkv;                             // queries, keys, values of all heads
  const float* qkv_bias = nullptr;        // [columns of qkv]; null unless spec.qkv_bias
  const float* query_norm = nullptr;      // [head_dim]; both null unless spec.qk_norm
  const float* key_norm = nullptr;
  Matrix attention_out;
  const float* mlp_norm = nullptr;
  Matrix gate_up;  // all of gate, then all of up
  Matrix mlp_out;
};

struct Weights {
  std::vector<DeviceMemory> memory;          // holds everything below
  size_t bytes = 0;                          // Model::weight_bytes
  const __nv_bfloat16* embedding = nullptr;  // [vocab, hidden]
  std::vector<Layer> layers;
  const float* final_norm = nullptr;
  Matrix head;  // the embedding itself if they are tied and bfloat16
};

// Uploads the weights as bfloat16, rounded to nearest even, and plans the products. If `operand` is kFp8,
// quantises the matrices to fp8 on the device. Errors are those of the source, of Matmul::Plan and of CUDA.
// `progress` may be null.
absl::StatusOr<Weights> LoadWeights(const TensorSource& source, const DecoderConfig& spec, Operand operand,
                                    Matmul& matmul, cudaStream_t stream,
                                    const std::function<void(double)>& progress);

// A part of a pass's attention whose plan was uploaded to Attention.
struct PlannedAttention {
  size_t plan;
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
    std::function<void(const StageOutput& output)> observe;  // RunnerOptions::observe, may be null
  };

  // Creates no KV pool. `matmul` must have planned the products of the weights. All references and `stream`
  // must outlive this object.
  static absl::StatusOr<std::unique_ptr<DecoderLayers>> Create(const DecoderConfig& spec, Weights weights,
                                                               Operand operand, Matmul& matmul,
                                                               Attention& attention, const Options& options,
                                                               cudaStream_t stream);

  // Replaces the KV pool. Call it before the first pass. RESOURCE_EXHAUSTED if there is not enough memory.
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

  // Stores the rows' keys and values and computes the logits. Can be captured in a graph, unless there is an
  // observer.
  absl::Status Enqueue(const Pass& pass);

  void CopyBlock(BlockId from, BlockId to);
  // See Model::MoveSlots.
  void MoveSlots(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves);
  // See Model::ReadSlot. Waits for the stream.
  absl::Status ReadSlot(BlockId block, int slot, absl::Span<float> values);

  // A block that no sequence uses, for the padding rows of a batch.
  int spare_block() const { return spare_block_; }
  size_t bytes_per_block() const { return block_bytes_; }
  size_t weight_bytes() const { return weights_.bytes; }

 private:
  DecoderLayers(const DecoderConfig& spec, Weights weights, Operand operand, Matmul& matmul,
                Attention& attention, const Options& options, cudaStream_t stream);
  // Allocates all memory except the cache, and uploads the table of the rotary embedding.
  absl::Status AllocateMemory();

  KvLayerView KvOf(int layer) const;
  absl::Status Attend(const Pass& pass, int layer, __nv_bfloat16* out);
  // Where to write the operand of the next product. Its scales are separate from those of the previous
  // operand, which may still be read.
  OperandRows NextOperand();
  // Multiplies the operand by the matrix, into product_.
  absl::StatusOr<Product> Multiply(const Matrix& matrix, int rows);

  // Rows [rows, columns] of a forward pass.
  struct Stage {
    absl::string_view name;
    int layer;
    int rows;
    int columns;
  };
  // The functions below show a stage to the observer, if there is one. They wait for the stream and copy the
  // rows to the host as float32. An error of a kernel thus names the stage in which it occurred.
  //
  // Shows the residual stream plus a product that has not yet been added to it (none if y is null).
  absl::Status ObserveResidual(const Stage& stage, const Product& product) const;
  // Shows rows in bfloat16, or in fp8 with scales.
  absl::Status ObserveOperand(const Stage& stage, const OperandRows& rows) const;
  template <class T>
  absl::Status ToHost(const Stage& stage, const void* from, size_t count, std::vector<T>& to) const;

  const DecoderConfig spec_;
  const Weights weights_;
  const Operand operand_type_;
  Matmul& matmul_;
  Attention& attention_;
  const Options options_;
  const cudaStream_t stream_;
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
