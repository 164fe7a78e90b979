// The weights of a quantised checkpoint, unpacked.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/engine/decoder/quantization.h"
#include "common/engine/decoder/safetensors.h"
#include "common/engine/decoder/tensor_source.h"

namespace outrider {

// Unpacks a matrix when it is asked for: scale times integer is exact in float32, unless the scale itself is
// float32: then it is rounded once. The memory belongs to the view. Thread-safe.
class UnpackedTensors final : public TensorSource {
 public:
  // `stored` must outlive it.
  UnpackedTensors(const SafeTensors& stored, const Quantization& quantization)
      : stored_(stored), quantization_(quantization) {}

  using TensorSource::Get;
  // What is stored plainly (norms, biases, modules that were left out) is as `stored` has it. For a matrix
  // whose `module`.weight is packed also the tensors beside it are checked: INVALID_ARGUMENT if one is
  // missing, has another shape or type, or holds what cannot be (a scale that is no number, a group that does
  // not exist). RESOURCE_EXHAUSTED if the memory does not suffice.
  absl::StatusOr<TensorView> Get(absl::string_view name, absl::Span<const int64_t> shape) const override;
  absl::Status Check(absl::string_view name, absl::Span<const int64_t> shape) const override;

 private:
  const SafeTensors& stored_;
  const Quantization quantization_;
};

}  // namespace outrider
