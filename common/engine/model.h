// A model that computes, on whatever its backend (common/engine/backend.h) runs it.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/batch.h"
#include "common/engine/device_task.h"
#include "common/kv/block_id.h"

namespace outrider {

// Holds weights, KV pool and scratch memory. One thread at a time, but for Wake.
class Model {
 public:
  virtual ~Model() = default;

  // The batch is valid as Runner::Forward defines it, and not empty. An error is one of the device.
  virtual absl::StatusOr<LogitsView> Forward(absl::Span<const SequenceRows> batch) = 0;
  virtual void CopyBlock(BlockId from, BlockId to) = 0;
  // A hint, from any thread, that Forward is about to be called.
  virtual void Wake() = 0;

  // Whether Forward carries out this task. A model that never decides anything says no to all.
  virtual bool CanRun(const DeviceTask& task) const = 0;

  virtual std::string dtype() const = 0;        // "float32", "bfloat16", "int8" or "fp8"
  virtual std::string kernel_name() const = 0;  // "avx512bf16", "avx512", "avx2", "portable" or "cuda"
  virtual int kv_blocks() const = 0;
  // Positions beyond this can neither be cached nor encoded.
  virtual int max_positions() const = 0;
  virtual size_t bytes_per_block() const = 0;  // keys and values of all layers
  virtual size_t weight_bytes() const = 0;     // resident, as packed
};

}  // namespace outrider
