// The function that liboutrider_torch.so exports.
#include "common/engine/plugin.h"

#include <type_traits>

#include "common/engine/torch/torch_model.h"

extern "C" __attribute__((visibility("default"))) void outrider_create_torch_model(
    const outrider::DecoderConfig& spec, const outrider::TensorSource& weights,
    std::optional<int> cuda_device, const outrider::RunnerOptions& options,
    absl::StatusOr<std::unique_ptr<outrider::Model>>& result) {
  result = outrider::libtorch::MakeTorchModel(spec, weights, cuda_device, options);
}

// The program and the plug-in must agree on the type of the function.
static_assert(std::is_same_v<decltype(outrider_create_torch_model), outrider::CreatePluginModelFunction>);
