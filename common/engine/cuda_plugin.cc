#include "common/engine/cuda_plugin.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace outrider {

absl::Status CudaPlugin::Check(const RunnerOptions& options) const {
  return CheckDtype(options, {"auto", "bfloat16", "fp8"});
}

absl::StatusOr<std::unique_ptr<Model>> CudaPlugin::Load(const DecoderSpec& spec, const RunnerOptions& options,
                                                        ThreadPool& /*threads*/) const {
  const auto refuse = [this](const char* why) {
    return absl::FailedPreconditionError(absl::StrCat("--device cuda:", device_, ": ", why));
  };
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path library = program.parent_path() / "liboutrider_cuda.so";
  if (!std::filesystem::exists(library, error)) {
    return refuse(
        "this build has no CUDA (liboutrider_cuda.so beside the program); make it with: make build CUDA=1");
  }
  // Never closed: CUDA's runtime cannot be unloaded.
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return refuse(dlerror());
  auto* const create = reinterpret_cast<CreateDeviceModelFunction*>(dlsym(handle, kCreateDeviceModel));
  if (create == nullptr) return refuse(dlerror());
  absl::StatusOr<std::unique_ptr<Model>> model = absl::InternalError("not made");
  create(spec, device_, options, model);
  return model;
}

}  // namespace outrider
