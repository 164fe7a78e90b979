// What liboutrider_cuda.so exports.
#include "common/engine/cuda/cuda_model.h"
#include "common/engine/cuda_plugin.h"

extern "C" __attribute__((visibility("default"))) void outrider_create_device_model(
    const outrider::DecoderSpec& spec, const outrider::DeviceModelOptions& options,
    absl::StatusOr<std::unique_ptr<outrider::Model>>& result) {
  result = outrider::cuda::CudaModel::Create(spec, options);
}
