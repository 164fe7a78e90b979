// The model behind --engine torch.
#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "common/engine/decoder/decoder_config.h"
#include "common/engine/decoder/tensor_source.h"
#include "common/engine/model.h"
#include "common/engine/runner_options.h"
#include "common/engine/torch/step_runner.h"

namespace outrider::libtorch {

// Makes a model that runs the decoder of decoder.h on libtorch's threads and devices. The rounding of a row's
// results depends on the other rows, because libtorch computes products of different shapes differently. With
// several ranks, rank 0 sends each step to the others, which also run it, in Model::Follow.
//
// cuda_device is N of cuda:N, nothing for the CPU; options.threads is not 0. Waits for the other ranks, if
// there are any. FAILED_PRECONDITION if libtorch has no such device; RESOURCE_EXHAUSTED if there is not
// enough memory; INVALID_ARGUMENT if the ranks cannot share the model; UNAVAILABLE if they do not come; else
// errors of the weights.
absl::StatusOr<std::unique_ptr<Model>> MakeTorchModel(const DecoderConfig& spec, const TensorSource& weights,
                                                      std::optional<int> cuda_device,
                                                      const RunnerOptions& options);
// The same with this runner.
absl::StatusOr<std::unique_ptr<Model>> MakeTorchModel(const DecoderConfig& spec, const TensorSource& weights,
                                                      std::unique_ptr<StepRunner> runner,
                                                      const RunnerOptions& options);

}  // namespace outrider::libtorch
