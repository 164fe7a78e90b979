// --device cuda:N: the library that runs models on a GPU, loaded when it is asked for.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/engine/backend.h"
#include "common/engine/decoder/decoder_spec.h"
#include "common/engine/model.h"
#include "common/engine/runner_options.h"

namespace outrider {

// The function that liboutrider_cuda.so exports: a model on device N of cuda:N. The library is built from the
// same sources as the program, so C++ types may cross.
using CreateDeviceModelFunction = void(const DecoderSpec& spec, int device, const RunnerOptions& options,
                                       absl::StatusOr<std::unique_ptr<Model>>& result);
inline constexpr char kCreateDeviceModel[] = "outrider_create_device_model";

// Loads models from liboutrider_cuda.so, which lies beside the program. FAILED_PRECONDITION, in one line,
// where the library or what it links to cannot be loaded; other errors are the library's own.
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
