// Finds the library that runs models on a device.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/engine/decoder/decoder_spec.h"
#include "common/engine/model.h"

namespace outrider {

struct DeviceModelOptions {
  std::string model_dir;
  int device = 0;  // N of cuda:N
  std::string dtype;
  int kv_blocks =
      0;  // 0: as many as fit kv_memory_fraction of the memory that is free once weights are loaded
  double kv_memory_fraction = 0.3;
  int max_sequences = 256;
  int block_size = 16;
  int max_batch_rows = 512;
  std::function<void(double fraction)> progress;  // optional
};

using DeviceModelFactory = std::function<absl::StatusOr<std::unique_ptr<Model>>(
    const DecoderSpec& spec, const DeviceModelOptions& options)>;

// N of "cuda:N"; nothing for "cpu". INVALID_ARGUMENT naming --device for anything else.
absl::StatusOr<std::optional<int>> ParseDevice(const std::string& device);

// The function that liboutrider_cuda.so exports. Everything behind it was built from the same sources as the
// program, so C++ types may cross.
inline constexpr char kCreateDeviceModel[] = "outrider_create_device_model";
using CreateDeviceModelFunction = void(const DecoderSpec& spec, const DeviceModelOptions& options,
                                       absl::StatusOr<std::unique_ptr<Model>>& result);

// A model out of liboutrider_cuda.so, which lies beside the program. FAILED_PRECONDITION, in one line, where
// the library or what it needs cannot be loaded; else what the library says.
absl::StatusOr<std::unique_ptr<Model>> LoadDeviceModel(const DecoderSpec& spec,
                                                       const DeviceModelOptions& options);

}  // namespace outrider
