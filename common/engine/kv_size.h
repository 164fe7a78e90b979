// The size of a KV pool.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "common/engine/decoder/decoder_spec.h"
#include "common/engine/runner_options.h"

namespace outrider {

// How many blocks of `block_bytes` the pool has: those that were asked for, or as many as fit its share of
// the `free_bytes` that are left once all other memory is allocated. These are at least one, and at most what
// max_sequences sequences of maximum length can use.
inline int KvBlocks(const DecoderSpec& spec, const RunnerOptions& options, size_t free_bytes,
                    size_t block_bytes) {
  if (options.kv_blocks > 0) return options.kv_blocks;
  block_bytes += options.more_block_bytes;
  const double bytes = options.pool_bytes != nullptr
                           ? options.pool_bytes(static_cast<double>(free_bytes), block_bytes)
                           : options.kv_memory_fraction * static_cast<double>(free_bytes);
  const double longest = std::ceil(static_cast<double>(spec.max_position_embeddings) / options.block_size);
  return static_cast<int>(
      std::clamp(bytes / static_cast<double>(block_bytes), 1.0, options.max_sequences * longest));
}

}  // namespace outrider
