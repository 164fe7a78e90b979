#include "common/engine/plugin.h"

#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/engine/library.h"
#include "common/engine/self_test.h"

namespace outrider {
namespace {

// A plug-in's function as a backend.
class LoadedPlugin final : public Backend {
 public:
  LoadedPlugin(CreatePluginModelFunction* create, std::optional<int> cuda_device)
      : create_(create), cuda_device_(cuda_device) {}

  absl::Status Check(const RunnerOptions& /*options*/) const override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Model>> Load(const DecoderSpec& spec, const TensorSource& weights,
                                              const RunnerOptions& options,
                                              ThreadPool& threads) const override {
    RunnerOptions resolved = options;
    resolved.threads = threads.threads();
    absl::StatusOr<std::unique_ptr<Model>> model = absl::InternalError("not made");
    create_(spec, weights, cuda_device_, resolved, model);
    return model;
  }

 private:
  CreatePluginModelFunction* const create_;
  const std::optional<int> cuda_device_;
};

constexpr absl::string_view kCudaDtypes[] = {"auto", "bfloat16", "fp8"};
constexpr absl::string_view kTorchDtypes[] = {"auto", "float32", "bfloat16"};

}  // namespace

const PluginDescription kCudaPlugin = {
    "liboutrider_cuda.so", "outrider_create_cuda_model", kCudaDtypes,
    "this build has no CUDA (liboutrider_cuda.so beside the program); make it with: make build CUDA=1",
    /*is_native=*/true};
const PluginDescription kTorchPlugin = {
    "liboutrider_torch.so", "outrider_create_torch_model", kTorchDtypes,
    "this build has no libtorch (liboutrider_torch.so beside the program); make it with: make build",
    /*is_native=*/false};

absl::Status PluginBackend::Check(const RunnerOptions& options) const {
  if (!options.kernels.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("kernels \"", options.kernels, "\" are for --engine native --device cpu"));
  }
  return CheckDtype(options, plugin_.dtypes);
}

absl::StatusOr<std::unique_ptr<Model>> PluginBackend::Load(const DecoderSpec& spec,
                                                           const TensorSource& weights,
                                                           const RunnerOptions& options,
                                                           ThreadPool& threads) const {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const absl::StatusOr<void*> create =
      FindInLibrary(program.parent_path() / plugin_.library, plugin_.symbol, plugin_.how_to_build);
  if (!create.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("--engine ", options.engine, " --device ",
                                                      options.device, ": ", create.status().message()));
  }
  const LoadedPlugin loaded(reinterpret_cast<CreatePluginModelFunction*>(*create), cuda_device_);
  if (plugin_.is_native) {
    if (absl::Status status = CheckNative(spec, options); !status.ok()) return status;
    if (absl::Status status = SelfTest(loaded, spec, options, threads); !status.ok()) return status;
  }
  return loaded.Load(spec, weights, options, threads);
}

}  // namespace outrider
