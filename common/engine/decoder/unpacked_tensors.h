// The weights of a quantised checkpoint, unpacked.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/engine/decoder/quantization.h"
#include "common/engine/decoder/safetensors.h"
#include "common/engine/decoder/tensor_source.h"

namespace outrider {

// Unpacks a matrix when it is requested. Scale times integer is exact in float32, unless the scale itself is
// float32; then it is rounded once. The memory belongs to the view. Thread-safe.
class UnpackedTensors final : public TensorSource {
 public:
  // `stored` must outlive it.
  UnpackedTensors(const SafeTensors& stored, const Quantization& quantization)
      : stored_(stored), quantization_(quantization) {}

  using TensorSource::Get;
  // Unquantised tensors (norms, biases, modules that were left out) are returned as `stored` has them. For a
  // packed `module`.weight, the tensors beside it are also checked: INVALID_ARGUMENT if one is missing, has
  // another shape or type, or holds an invalid value (a scale that is not a number, a group that does not
  // exist). RESOURCE_EXHAUSTED if there is not enough memory.
  absl::StatusOr<TensorView> Get(absl::string_view name, absl::Span<const int64_t> shape) const override;
  absl::Status Check(absl::string_view name, absl::Span<const int64_t> shape) const override;

 private:
  const SafeTensors& stored_;
  const Quantization quantization_;
};

}  // namespace outrider
