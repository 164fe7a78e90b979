#include "common/engine/plugin.h"

#include "absl/strings/str_cat.h"

namespace outrider {
namespace {

constexpr absl::string_view kCudaDtypes[] = {"auto", "bfloat16", "fp8"};
constexpr absl::string_view kTorchDtypes[] = {"auto", "float32", "bfloat16"};

std::filesystem::path FileOf(const PluginDescription& plugin) {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  return program.parent_path() / plugin.library;
}

}  // namespace

const PluginDescription kCudaPlugin = {
    "liboutrider_cuda.so", "outrider_create_cuda_model", kCudaDtypes,
    "this build has no CUDA (liboutrider_cuda.so beside the program); make it with: make build CUDA=1",
    /*is_native=*/true};
const PluginDescription kTorchPlugin = {
    "liboutrider_torch.so", "outrider_create_torch_model", kTorchDtypes,
    "this build has no libtorch (liboutrider_torch.so beside the program); make it with: make build",
    /*is_native=*/false};

bool IsBuilt(const PluginDescription& plugin) {
  std::error_code error;
  return std::filesystem::exists(FileOf(plugin), error);
}

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
  const absl::StatusOr<void*> create = FindInLibrary(FileOf(plugin_), plugin_.symbol, plugin_.how_to_build);
  if (!create.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("--engine ", options.engine, " --device ",
                                                      options.device, ": ", create.status().message()));
  }
  if (plugin_.is_native) {
    if (absl::Status status = CheckNative(spec, options); !status.ok()) return status;
  }
  RunnerOptions resolved = options;
  resolved.threads = threads.threads();
  absl::StatusOr<std::unique_ptr<Model>> model = absl::InternalError("not made");
  reinterpret_cast<CreatePluginModelFunction*> (*create)(spec, weights, cuda_device_, resolved, model);
  return model;
}

}  // namespace outrider
