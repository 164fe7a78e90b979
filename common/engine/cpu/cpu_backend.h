// The backend for --device cpu.
#pragma once

#include "common/engine/backend.h"

namespace outrider {

// Runs models with the engine's own kernels on the threads given to Load.
class CpuBackend final : public Backend {
 public:
  absl::Status Check(const RunnerOptions& options) const override;
  absl::StatusOr<std::unique_ptr<Model>> Load(const DecoderSpec& spec, const TensorSource& weights,
                                              const RunnerOptions& options,
                                              ThreadPool& threads) const override;
};

}  // namespace outrider
