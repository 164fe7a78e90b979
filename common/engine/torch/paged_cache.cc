#include "common/engine/torch/paged_cache.h"

#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace outrider::libtorch {
size_t PagedCache::BlockBytes(const DecoderSpec& spec, int block_size, const at::TensorOptions& options) {
  return 2 * options.dtype().itemsize() * static_cast<size_t>(spec.layers) *
         static_cast<size_t>(spec.kv_heads) * static_cast<size_t>(block_size) *
         static_cast<size_t>(spec.head_dim);
}

absl::StatusOr<PagedCache> PagedCache::Create(const DecoderSpec& spec, int blocks, int block_size,
                                              const at::TensorOptions& options) {
  const size_t block_bytes = BlockBytes(spec, block_size, options), count = static_cast<size_t>(blocks);
  const auto refuse = [&] {
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", blocks, " blocks of ", block_bytes,
                                                     " bytes for the KV pool (--kv-blocks, --block-size)"));
  };
  if (block_bytes > std::numeric_limits<int64_t>::max() / count) return refuse();
  const int64_t sizes[] = {blocks, spec.layers, 2, spec.kv_heads, block_size, spec.head_dim};
  try {
    return PagedCache(at::empty(sizes, options));
  } catch (const c10::Error&) {  // what libtorch's allocator for the CPU throws
    return refuse();
  }
}

void PagedCache::Store(int layer, const at::Tensor& blocks, const at::Tensor& slots, const at::Tensor& keys,
                       const at::Tensor& values) {
  const at::Tensor of_layer = pool_.select(1, layer);  // [blocks, 2, kv_heads, block_size, head_dim]
  const auto all = at::indexing::Slice();
  of_layer.select(1, 0).index_put_({blocks, all, slots}, keys);
  of_layer.select(1, 1).index_put_({blocks, all, slots}, values);
}

std::pair<at::Tensor, at::Tensor> PagedCache::Gather(int layer, const at::Tensor& table,
                                                     const at::Tensor& unwritten) const {
  const int64_t sequences = table.size(0), positions = table.size(1) * block_size();
  const at::Tensor gathered = pool_.select(1, layer)
                                  .index_select(0, table.flatten())
                                  .unflatten(0, table.sizes())
                                  .permute({2, 0, 3, 1, 4, 5})
                                  .reshape({2, sequences, pool_.size(3), positions, pool_.size(5)})
                                  .masked_fill_(unwritten, 0);
  return {gathered[0], gathered[1]};
}

void PagedCache::CopyBlock(BlockId from, BlockId to) {
  if (from != to) pool_[to].copy_(pool_[from]);
}

void PagedCache::MoveSlots(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves) {
  const auto slot_of = [&](int slot) {
    return pool_[blocks[static_cast<size_t>(slot / block_size())]].select(3, slot % block_size());
  };
  for (const SlotMove& move : moves) slot_of(move.to).copy_(slot_of(move.from));
}

void PagedCache::ReadSlot(BlockId block, int slot, absl::Span<float> values) const {
  const at::Tensor read = pool_[block].select(3, slot).to(at::kCPU, at::kFloat).contiguous();
  std::copy_n(read.const_data_ptr<float>(), values.size(), values.begin());
}

}  // namespace outrider::libtorch
