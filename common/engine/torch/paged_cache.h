// The paged KV cache as a tensor.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/batch.h"
#include "common/engine/decoder/decoder_spec.h"
#include "common/kv/block_id.h"

namespace outrider::libtorch {

// One tensor [blocks, layers, 2, kv_heads, block_size, head_dim]: a block is contiguous, and holds the keys
// and the values of its tokens in all layers. Functions throw c10::Error if the device fails.
class PagedCache {
 public:
  // `options` say dtype and device. RESOURCE_EXHAUSTED if the pool does not fit the memory.
  static absl::StatusOr<PagedCache> Create(const DecoderSpec& spec, int blocks, int block_size,
                                           const at::TensorOptions& options);

  // Stores keys and values [rows, kv_heads, head_dim] in the slots `slots` of the blocks `blocks`, both
  // [rows].
  void Store(int layer, const at::Tensor& blocks, const at::Tensor& slots, const at::Tensor& keys,
             const at::Tensor& values);
  // The keys and the values in the blocks of a table [sequences, blocks]: [sequences, kv_heads, blocks *
  // block_size, head_dim] each. 0 where `unwritten` [sequences, 1, blocks * block_size, 1] says so: what
  // another sequence left there may be NaN, which no mask hides.
  std::pair<at::Tensor, at::Tensor> Gather(int layer, const at::Tensor& table,
                                           const at::Tensor& unwritten) const;

  void CopyBlock(BlockId from, BlockId to);
  // As Model::MoveSlots.
  void MoveSlots(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves);
  // As Model::ReadSlot.
  void ReadSlot(BlockId block, int slot, absl::Span<float> values) const;

  int blocks() const { return static_cast<int>(pool_.size(0)); }
  int block_size() const { return static_cast<int>(pool_.size(4)); }
  static size_t BlockBytes(const DecoderSpec& spec, int block_size, const at::TensorOptions& options);

 private:
  explicit PagedCache(at::Tensor pool) : pool_(std::move(pool)) {}

  at::Tensor pool_;
};

}  // namespace outrider::libtorch
