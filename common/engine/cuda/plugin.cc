// The function that liboutrider_cuda.so exports.
#include <type_traits>

#include "common/engine/cuda/cuda_model.h"
#include "common/engine/plugin.h"

extern "C" __attribute__((visibility("default"))) void outrider_create_cuda_model(
    const outrider::DecoderConfig& spec, const outrider::TensorSource& weights,
    std::optional<int> cuda_device, const outrider::RunnerOptions& options,
    absl::StatusOr<std::unique_ptr<outrider::Model>>& result) {
  result = outrider::cuda::CudaModel::Create(spec, weights, *cuda_device, options);
}

// The program and the plug-in must agree on the type of the function.
static_assert(std::is_same_v<decltype(outrider_create_cuda_model), outrider::CreatePluginModelFunction>);
