// Backends in shared libraries of their own, which are loaded on first use: our CUDA kernels, and libtorch.
#pragma once

#include <dlfcn.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/backend.h"
#include "common/engine/decoder/decoder_spec.h"
#include "common/engine/model.h"
#include "common/engine/runner_options.h"

namespace outrider {

// The function that a plug-in exports: makes a model on device N of cuda:N, or on the CPU. `options` have
// passed Check, and their `threads` is not 0. Library and program are built from the same sources, so C++
// types may cross the boundary.
using CreatePluginModelFunction = void(const DecoderSpec& spec, const TensorSource& weights,
                                       std::optional<int> cuda_device, const RunnerOptions& options,
                                       absl::StatusOr<std::unique_ptr<Model>>& result);

// A plug-in, whose file is in the program's directory.
struct PluginDescription {
  const char* library;  // its file
  const char* symbol;   // its CreatePluginModelFunction
  absl::Span<const absl::string_view> dtypes;
  const char* how_to_build;  // shown if the file is missing
  bool is_native;            // our kernels: Load checks that they support the model; they are tested first
};
extern const PluginDescription kCudaPlugin;
extern const PluginDescription kTorchPlugin;

// The address of `symbol` in a library, which is loaded if necessary and never closed: the runtimes of CUDA
// and OpenMP, and libtorch's registered kernels, cannot be unloaded. FAILED_PRECONDITION, on one line, if the
// file is missing (with the message `if_missing`) or cannot be loaded. Inline for a plug-in that loads a
// library itself.
inline absl::StatusOr<void*> FindInLibrary(const std::filesystem::path& library, const char* symbol,
                                           const char* if_missing) {
  std::error_code error;
  if (!std::filesystem::exists(library, error)) return absl::FailedPreconditionError(if_missing);
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return absl::FailedPreconditionError(dlerror());
  void* const found = dlsym(handle, symbol);
  if (found == nullptr) return absl::FailedPreconditionError(dlerror());
  return found;
}

// Whether the plug-in's file exists. It may still fail to load.
bool IsBuilt(const PluginDescription& plugin);

// Loads models through a plug-in. FAILED_PRECONDITION, on one line, if the library or one of its dependencies
// cannot be loaded; else the library's errors.
class PluginBackend final : public Backend {
 public:
  // cuda_device is N of cuda:N, nothing for the CPU.
  PluginBackend(const PluginDescription& plugin, std::optional<int> cuda_device)
      : plugin_(plugin), cuda_device_(cuda_device) {}

  absl::Status Check(const RunnerOptions& options) const override;
  bool IsTestedFirst() const override { return plugin_.is_native; }
  absl::StatusOr<std::unique_ptr<Model>> Load(const DecoderSpec& spec, const TensorSource& weights,
                                              const RunnerOptions& options,
                                              ThreadPool& threads) const override;

 private:
  const PluginDescription& plugin_;
  const std::optional<int> cuda_device_;
};

}  // namespace outrider
