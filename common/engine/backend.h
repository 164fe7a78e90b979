// Where models run: the CPU, or a kind of device.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/engine/decoder/decoder_spec.h"
#include "common/engine/model.h"
#include "common/engine/runner_options.h"
#include "common/engine/thread_pool.h"

namespace outrider {

// Loads models onto one device. Immutable: any thread may use it.
class Backend {
 public:
  virtual ~Backend() = default;

  // Whether this backend takes the options, before any file is read or any device is looked for.
  // INVALID_ARGUMENT, naming the flag, if it does not.
  virtual absl::Status Check(const RunnerOptions& options) const = 0;

  // A model with the weights of options.model_dir, a KV pool and all scratch memory. `options` passed Check.
  // The model may use `threads`, which must outlive it, inside its own calls. FAILED_PRECONDITION where the
  // device cannot be used; INVALID_ARGUMENT, naming file and field or tensor, for a model that this backend
  // cannot run; NOT_FOUND for missing files; RESOURCE_EXHAUSTED where memory cannot be had.
  virtual absl::StatusOr<std::unique_ptr<Model>> Load(const DecoderSpec& spec, const RunnerOptions& options,
                                                      ThreadPool& threads) const = 0;
};

// The backend for a value of --device. INVALID_ARGUMENT, listing what there is, for one that has none.
absl::StatusOr<std::unique_ptr<Backend>> BackendFor(const std::string& device);

// For Check: INVALID_ARGUMENT unless options.dtype is one of these.
absl::Status CheckDtype(const RunnerOptions& options, absl::Span<const absl::string_view> dtypes);

}  // namespace outrider
