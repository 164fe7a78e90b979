#include "common/engine/torch/cuda_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

#include "absl/status/status.h"

namespace outrider::libtorch {

absl::StatusOr<std::unique_ptr<StepRunner>> LoadCudaRunner(int device) {
  Dl_info here;
  if (dladdr(reinterpret_cast<const void*>(&LoadCudaRunner), &here) == 0) {
    return absl::InternalError("the plug-in does not know where it is");
  }
  const std::filesystem::path library =
      std::filesystem::path(here.dli_fname).parent_path() / "liboutrider_torch_cuda.so";
  std::error_code error;
  if (!std::filesystem::exists(library, error)) {
    return absl::FailedPreconditionError(
        "this build has no CUDA (liboutrider_torch_cuda.so beside the program); make it with: make build "
        "CUDA=1");
  }
  // Never closed: libtorch's kernels are registered for good.
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return absl::FailedPreconditionError(dlerror());
  auto* const create = reinterpret_cast<CreateCudaRunnerFunction*>(dlsym(handle, kCreateCudaRunner));
  if (create == nullptr) return absl::FailedPreconditionError(dlerror());
  absl::StatusOr<std::unique_ptr<StepRunner>> runner = absl::InternalError("not made");
  create(device, runner);
  return runner;
}

}  // namespace outrider::libtorch
