#include "common/engine/cuda/stage_observer.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/engine/cuda/device_memory.h"
#include "common/engine/decoder/elements.h"

namespace outrider::cuda {
namespace {

size_t Elements(const StageObserver::Stage& stage) {
  return static_cast<size_t>(stage.rows) * static_cast<size_t>(stage.columns);
}

// Waits for the stream, and so for the stage.
template <class T>
absl::Status ToHost(const StageObserver::Stage& stage, const void* from, size_t count, cudaStream_t stream,
                    std::vector<T>& to) {
  to.resize(count);
  cudaError_t error = cudaGetLastError();  // where a kernel could not be launched
  if (error == cudaSuccess)
    error = cudaMemcpyAsync(to.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  return ToStatus(error, absl::StrCat("computing layer ", stage.layer, ", ", stage.name));
}

}  // namespace

absl::Status StageObserver::Residual(const Stage& stage, const float* residual,
                                     const Product& product) const {
  if (!observe_) return absl::OkStatus();
  const size_t columns = static_cast<size_t>(stage.columns);
  std::vector<float> values, added, row_scales(static_cast<size_t>(stage.rows), 1.0f),
      column_scales(columns, 1.0f);
  absl::Status status = ToHost(stage, residual, Elements(stage), stream_, values);
  if (status.ok() && product.y != nullptr) status = ToHost(stage, product.y, Elements(stage), stream_, added);
  if (status.ok() && product.row_scales != nullptr)
    status = ToHost(stage, product.row_scales, row_scales.size(), stream_, row_scales);
  if (status.ok() && product.column_scales != nullptr)
    status = ToHost(stage, product.column_scales, columns, stream_, column_scales);
  if (!status.ok()) return status;
  for (size_t i = 0; i < added.size(); ++i)
    values[i] += added[i] * row_scales[i / columns] * column_scales[i % columns];
  observe_({stage.name, stage.layer, stage.columns, values});
  return absl::OkStatus();
}

absl::Status StageObserver::Operand(const Stage& stage, const OperandRows& rows) const {
  if (!observe_) return absl::OkStatus();
  std::vector<float> values;
  values.reserve(Elements(stage));
  if (rows.row_scales == nullptr) {
    std::vector<uint16_t> stored;
    const absl::Status status = ToHost(stage, rows.data, Elements(stage), stream_, stored);
    if (!status.ok()) return status;
    for (const uint16_t value : stored) values.push_back(FromBFloat16(value));
  } else {
    std::vector<uint8_t> stored;
    std::vector<float> scales;
    absl::Status status = ToHost(stage, rows.data, Elements(stage), stream_, stored);
    if (status.ok())
      status = ToHost(stage, rows.row_scales, static_cast<size_t>(stage.rows), stream_, scales);
    if (!status.ok()) return status;
    for (size_t i = 0; i < stored.size(); ++i)
      values.push_back(FromFloat8(stored[i]) * scales[i / static_cast<size_t>(stage.columns)]);
  }
  observe_({stage.name, stage.layer, stage.columns, values});
  return absl::OkStatus();
}

}  // namespace outrider::cuda
