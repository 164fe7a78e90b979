// Reads model.safetensors. Every tensor that can be read lies in the file, and so do the tensors that make up
// a packed weight.
#include "common/engine/decoder/safetensors.h"

#include <cmath>
#include <fstream>

#include "bench/temporary_folder.h"
#include "common/engine/decoder/unpacked_tensors.h"
#include "tests/fuzz/target.h"

namespace outrider {

void FuzzTarget(std::string_view input) {
  static const TemporaryFolder folder;
  static const Quantization formats[] = {CompressedTensors{.floats = true},
                                         CompressedTensors{.group_size = 8, .zero_points = true},
                                         CompressedTensors{.packed = true, .bits = 4, .zero_points = true},
                                         Gptq{.bits = 4, .group_size = 8}, Awq{.group_size = 8}};
  std::ofstream(folder.path() + "/model.safetensors", std::ios::binary) << input;
  const absl::StatusOr<SafeTensors> tensors = SafeTensors::Open(folder.path());
  if (!tensors.ok()) return;
  tensors->Hash();  // reads all tensors
  for (const Quantization& format : formats) {
    const absl::StatusOr<TensorView> weight = UnpackedTensors(*tensors, format).Get("m.weight", {8, 16});
    if (!weight.ok() || weight->memory == nullptr) continue;
    for (int i = 0; i < 8 * 16; ++i) {
      Require(!std::isnan(reinterpret_cast<const float*>(weight->data)[i]), "a weight is a number");
    }
  }
}

}  // namespace outrider
