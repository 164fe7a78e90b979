// Small models on the GPU for tests.
#pragma once

#include <memory>
#include <utility>

#include "common/engine/cuda/cuda_model.h"
#include "common/engine/runner.h"
#include "tests/unit/changed_model.h"
#include "tests/unit/engine_helpers.h"

namespace outrider::testing {

// A model for which the host decides, from the same logits.
class HostDecides final : public ChangedModel {
 public:
  explicit HostDecides(std::unique_ptr<Model> model)
      : ChangedModel(std::move(model), [](LogitsView) { return absl::OkStatus(); }) {}
  bool CanRun(const DeviceTask& /*task*/) const override { return false; }
};

// Makes models on the GPU, or on the emulated one.
class Gpu final : public Backend {
 public:
  explicit Gpu(bool decides = true) : decides_(decides) {}

  absl::Status Check(const RunnerOptions& /*options*/) const override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Model>> Load(const DecoderConfig& spec, const TensorSource& weights,
                                              const RunnerOptions& options,
                                              ThreadPool& /*threads*/) const override {
    absl::StatusOr<std::unique_ptr<Model>> model =
        cuda::CudaModel::Create(spec, weights, /*device=*/0, options);
    if (!model.ok() || decides_) return model;
    return std::make_unique<HostDecides>(*std::move(model));
  }

 private:
  const bool decides_;
};

// Options for the random model whose sizes the kernels support.
inline RunnerOptions OnGpu(RunnerOptions options, const char* dtype) {
  options.model_dir = DataDir("gqa4-llama3-rope");
  options.device = "cuda:0";
  options.dtype = dtype;
  return options;
}

}  // namespace outrider::testing
