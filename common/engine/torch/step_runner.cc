#include "common/engine/torch/step_runner.h"

#include <c10/core/InferenceMode.h>
#include <dlfcn.h>

#include <exception>
#include <filesystem>
#include <new>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/engine/plugin.h"
#include "common/spec/status.h"

namespace outrider::libtorch {

absl::StatusOr<std::unique_ptr<StepRunner>> LoadCudaRunner(int device, bool high_priority) {
  Dl_info here;
  if (dladdr(reinterpret_cast<const void*>(&LoadCudaRunner), &here) == 0) {
    return absl::InternalError("the plug-in does not know where it is");
  }
  void* const create = OUTRIDER_TRY(FindInLibrary(
      std::filesystem::path(here.dli_fname).parent_path() / "liboutrider_torch_cuda.so", kCreateCudaRunner,
      "this build has no CUDA (liboutrider_torch_cuda.so beside the program); make it with: make build "
      "CUDA=1 TORCH=1"));
  absl::StatusOr<std::unique_ptr<StepRunner>> runner = absl::InternalError("not made");
  reinterpret_cast<CreateCudaRunnerFunction*>(create)(device, high_priority, runner);
  return runner;
}

absl::Status Try(StepRunner& runner, absl::string_view what, absl::FunctionRef<absl::Status()> work) {
  const auto message = [&](absl::string_view error) {
    return absl::StrCat(what, ": ", error.substr(0, error.find('\n')));
  };
  try {
    const c10::InferenceMode no_gradients;
    absl::Status status;
    runner.InOrder([&] { status = work(); });
    return status;
  } catch (const c10::OutOfMemoryError& error) {
    return absl::ResourceExhaustedError(message(error.what_without_backtrace()));
  } catch (const c10::Error& error) {
    const absl::string_view why = error.what_without_backtrace();
    // The CPU allocator's exception has no type of its own.
    return absl::StrContains(why, "DefaultCPUAllocator") ? absl::ResourceExhaustedError(message(why))
                                                         : absl::InternalError(message(why));
  } catch (const std::bad_alloc& error) {
    return absl::ResourceExhaustedError(message(error.what()));
  } catch (const std::exception& error) {
    return absl::InternalError(message(error.what()));
  }
}

}  // namespace outrider::libtorch
