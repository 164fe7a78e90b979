// The interface between a program and its plug-ins. A plug-in is a shared library with a backend, loaded on
// first use: one has the native CUDA kernels, the other libtorch.
#pragma once

#include <dlfcn.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/decoder/decoder_config.h"
#include "common/engine/decoder/tensor_source.h"
#include "common/engine/model.h"
#include "common/engine/runner_options.h"

namespace outrider {

// The function that a plug-in exports. It makes a model on GPU `cuda_device` (N of cuda:N), or on the CPU if
// that is empty. `options` have passed Check, and options.threads is not 0. Library and program are built
// from the same sources, so C++ types may cross the boundary.
using CreatePluginModelFunction = void(const DecoderConfig& spec, const TensorSource& weights,
                                       std::optional<int> cuda_device, const RunnerOptions& options,
                                       absl::StatusOr<std::unique_ptr<Model>>& result);

// Returns the address of `symbol` in a library, which is loaded if necessary and never closed: the runtimes
// of CUDA and OpenMP, and libtorch's registered kernels, cannot be unloaded. FAILED_PRECONDITION, on one
// line, if the file is missing (with the message `if_missing`), cannot be loaded or lacks the symbol. Inline
// because a plug-in loads a library, too.
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

}  // namespace outrider
