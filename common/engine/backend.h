// A backend runs models with the native CPU kernels, the native CUDA kernels, or libtorch on either device.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/engine/decoder/decoder_config.h"
#include "common/engine/decoder/tensor_source.h"
#include "common/engine/model.h"
#include "common/engine/runner_options.h"
#include "common/engine/thread_pool.h"

namespace outrider {

// Loads models onto one device. Immutable and thread-safe.
class Backend {
 public:
  virtual ~Backend() = default;

  // Checks the options before any file is read or device is touched. INVALID_ARGUMENT, naming the flag, for
  // one that this backend does not support.
  virtual absl::Status Check(const RunnerOptions& options) const = 0;

  // Whether Runner::Load tests the backend (self_test.h) before it loads a model.
  virtual bool IsTestedFirst() const { return false; }

  // Copies the weights and allocates a KV pool and (except with libtorch) all scratch memory. `options` must
  // have passed Check. During its calls the model may run work on `threads`, which must outlive it.
  // FAILED_PRECONDITION if the device cannot be used; INVALID_ARGUMENT, naming file and field or tensor, for
  // a model that this backend does not support; NOT_FOUND for missing files; RESOURCE_EXHAUSTED if there is
  // not enough memory.
  virtual absl::StatusOr<std::unique_ptr<Model>> Load(const DecoderConfig& spec, const TensorSource& weights,
                                                      const RunnerOptions& options,
                                                      ThreadPool& threads) const = 0;
};

// The backend for the values of --engine and --device. INVALID_ARGUMENT, listing the valid values, for any
// other.
absl::StatusOr<std::unique_ptr<Backend>> BackendFor(const std::string& engine, const std::string& device);

// The engines that this build and this CPU can run, in words: "native on the CPU (avx512 kernels), torch".
std::string DescribeEngines();

// Checks that the native kernels support the model. INVALID_ARGUMENT, naming a feature that they lack.
absl::Status CheckNative(const DecoderConfig& spec, const RunnerOptions& options);

// For implementations of Check: INVALID_ARGUMENT unless options.dtype is in `dtypes`.
absl::Status CheckDtype(const RunnerOptions& options, absl::Span<const absl::string_view> dtypes);

// For implementations of Load: the number of blocks of `block_bytes` in the KV pool. It is the requested
// number, or as many as fit the pool's share of the `free_bytes` left after all other allocations: at least
// one, and at most what max_sequences sequences of maximum length can use.
inline int KvBlocks(const DecoderConfig& spec, const RunnerOptions& options, size_t free_bytes,
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
