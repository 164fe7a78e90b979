// A model that computes: on the CPU (common/engine/cpu/cpu_model.h) or in a device's library
// (common/engine/cuda).
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/batch.h"
#include "common/kv/block_id.h"

namespace outrider {

// Holds weights, KV pool and scratch memory. Used by one thread at a time.
class Model {
 public:
  virtual ~Model() = default;

  // The batch is valid as Runner::Forward defines it, and not empty. An error is one of the device.
  virtual absl::StatusOr<LogitsView> Forward(absl::Span<const SequenceRows> batch) = 0;
  virtual void CopyBlock(BlockId from, BlockId to) = 0;

  // Whether it carries out tasks.
  virtual bool decides() const = 0;
  virtual int kv_blocks() const = 0;
  // Positions beyond this can neither be cached nor encoded.
  virtual int max_positions() const = 0;
  virtual size_t bytes_per_block() const = 0;  // keys and values of all layers
  virtual size_t weight_bytes() const = 0;
};

}  // namespace outrider
