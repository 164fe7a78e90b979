#include "common/engine/torch/cuda_library.h"

#include <dlfcn.h>

#include <filesystem>

#include "absl/status/status.h"
#include "common/engine/library.h"

namespace outrider::libtorch {

absl::StatusOr<std::unique_ptr<StepRunner>> LoadCudaRunner(int device, bool high_priority) {
  Dl_info here;
  if (dladdr(reinterpret_cast<const void*>(&LoadCudaRunner), &here) == 0) {
    return absl::InternalError("the plug-in does not know where it is");
  }
  const absl::StatusOr<void*> create = FindInLibrary(
      std::filesystem::path(here.dli_fname).parent_path() / "liboutrider_torch_cuda.so", kCreateCudaRunner,
      "this build has no CUDA (liboutrider_torch_cuda.so beside the program); make it with: make build "
      "CUDA=1");
  if (!create.ok()) return create.status();
  absl::StatusOr<std::unique_ptr<StepRunner>> runner = absl::InternalError("not made");
  reinterpret_cast<CreateCudaRunnerFunction*> (*create)(device, high_priority, runner);
  return runner;
}

}  // namespace outrider::libtorch
