// A backend runs models: our kernels for the CPU, those for CUDA GPUs, or libtorch on either.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/engine/decoder/decoder_spec.h"
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

  // Whether a model is loaded only after the backend passed its test (self_test.h), as Runner::Load sees to.
  virtual bool IsTestedFirst() const { return false; }

  // Copies the weights and allocates a KV pool and, but for libtorch, all scratch memory. `options` passed
  // Check. The model may run work on `threads`, which must outlive it, inside its own calls.
  // FAILED_PRECONDITION if the device cannot be used; INVALID_ARGUMENT, naming file and field or tensor, for
  // a model that this backend does not support; NOT_FOUND for missing files; RESOURCE_EXHAUSTED if there is
  // not enough memory.
  virtual absl::StatusOr<std::unique_ptr<Model>> Load(const DecoderSpec& spec, const TensorSource& weights,
                                                      const RunnerOptions& options,
                                                      ThreadPool& threads) const = 0;
};

// The backend for the values of --engine and --device. INVALID_ARGUMENT, listing the valid values, for any
// other.
absl::StatusOr<std::unique_ptr<Backend>> BackendFor(const std::string& engine, const std::string& device);

// What this build and this CPU can run models with: "native on the CPU (avx512 kernels), torch".
std::string DescribeEngines();

// INVALID_ARGUMENT, naming what it is, if our own kernels do not have something of the model.
absl::Status CheckNative(const DecoderSpec& spec, const RunnerOptions& options);

// For implementations of Check: INVALID_ARGUMENT unless options.dtype is in `dtypes`.
absl::Status CheckDtype(const RunnerOptions& options, absl::Span<const absl::string_view> dtypes);

}  // namespace outrider
