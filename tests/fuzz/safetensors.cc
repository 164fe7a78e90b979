// model.safetensors: every tensor that can be read lies in the file.
#include "common/engine/decoder/safetensors.h"

#include <fstream>

#include "bench/temporary_folder.h"
#include "tests/fuzz/target.h"

namespace outrider {

void FuzzTarget(std::string_view input) {
  static const TemporaryFolder folder;
  std::ofstream(folder.path() + "/model.safetensors", std::ios::binary) << input;
  const absl::StatusOr<SafeTensors> tensors = SafeTensors::Open(folder.path());
  if (tensors.ok()) tensors->Hash();  // reads all of them
}

}  // namespace outrider
