// The backend for --device cuda:N: a shared library that is loaded on first use.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/engine/backend.h"
#include "common/engine/decoder/decoder_spec.h"
#include "common/engine/model.h"
#include "common/engine/runner_options.h"

namespace outrider {

// The function that liboutrider_cuda.so exports: makes a model on device N of cuda:N. Library and program are
// built from the same sources, so C++ types may cross the boundary.
using CreateDeviceModelFunction = void(const DecoderSpec& spec, int device, const RunnerOptions& options,
                                       absl::StatusOr<std::unique_ptr<Model>>& result);
inline constexpr char kCreateDeviceModel[] = "outrider_create_device_model";

// Loads models through liboutrider_cuda.so, which lies beside the program. FAILED_PRECONDITION, on one line,
// if the library or one of its dependencies cannot be loaded; else the library's errors.
class CudaPlugin final : public Backend {
 public:
  explicit CudaPlugin(int device) : device_(device) {}

  absl::Status Check(const RunnerOptions& options) const override;
  absl::StatusOr<std::unique_ptr<Model>> Load(const DecoderSpec& spec, const RunnerOptions& options,
                                              ThreadPool& threads) const override;

 private:
  const int device_;  // N of cuda:N
};

}  // namespace outrider
