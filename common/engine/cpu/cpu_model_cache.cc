// CpuModel's operations on its KV pool.
#include <cstring>

#include "common/engine/cpu/cpu_model.h"
#include "common/engine/cpu/cpu_weights.h"

namespace outrider {

KvLayer LayOutKv(const DecoderConfig& spec, Storage storage, int block_size) {
  const int64_t element_bytes = storage == Storage::kFloat32 ? 4 : 2;
  KvLayer kv{};
  kv.storage = storage == Storage::kInt8 ? Storage::kBFloat16 : storage;
  kv.block_size = block_size;
  kv.slot_stride = RoundUp(block_size, kKvPad);
  kv.head_dim = spec.head_dim;
  kv.value_stride = RoundUp(spec.head_dim, kKvPad);
  kv.value_offset = element_bytes * spec.kv_heads * spec.head_dim * kv.slot_stride;
  const int64_t value_bytes = element_bytes * spec.kv_heads * block_size * kv.value_stride;
  kv.block_bytes = spec.layers * (kv.value_offset + value_bytes);
  return kv;
}

void CpuModel::CopyBlock(BlockId from, BlockId to) {
  if (from == to) return;
  std::memcpy(kv_.base + to * kv_.block_bytes, kv_.base + from * kv_.block_bytes, bytes_per_block());
}

// A slot's key is a column of 32-bit words that hold one or two dimensions each. Its value is a row.
void CpuModel::MoveSlots(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves) {
  const bool wide = kv_.storage == Storage::kFloat32;
  const size_t column = static_cast<size_t>(kv_.slot_stride) * 4;
  const size_t words = static_cast<size_t>(spec_.kv_heads * spec_.head_dim) / (wide ? 1 : 2);
  const size_t value_bytes = static_cast<size_t>(kv_.value_stride) * (wide ? 4 : 2);
  for (const SlotMove& move : moves) {
    for (int layer = 0; layer < spec_.layers; ++layer) {
      const KvLayer kv = LayerOfCache(layer);
      const auto block_of = [&](int slot) {
        return kv.base + blocks[static_cast<size_t>(slot / kv.block_size)] * kv.block_bytes;
      };
      const size_t from = static_cast<size_t>(move.from % kv.block_size);
      const size_t to = static_cast<size_t>(move.to % kv.block_size);
      for (size_t word = 0; word < words; ++word) {
        std::memcpy(block_of(move.to) + word * column + to * 4,
                    block_of(move.from) + word * column + from * 4, 4);
      }
      for (size_t head = 0; head < static_cast<size_t>(spec_.kv_heads); ++head) {
        const size_t first = head * static_cast<size_t>(kv.block_size);
        std::memcpy(block_of(move.to) + kv.value_offset + (first + to) * value_bytes,
                    block_of(move.from) + kv.value_offset + (first + from) * value_bytes, value_bytes);
      }
    }
  }
}

absl::Status CpuModel::ReadSlot(BlockId block, int slot, absl::Span<float> values) {
  const size_t per_layer = 2 * static_cast<size_t>(spec_.kv_heads) * static_cast<size_t>(spec_.head_dim);
  for (int layer = 0; layer < spec_.layers; ++layer) {
    float* const out = values.data() + static_cast<size_t>(layer) * per_layer;
    kernels_.read_slot({LayerOfCache(layer), block, slot, spec_.kv_heads, out});
  }
  return absl::OkStatus();
}

}  // namespace outrider
