#include "common/engine/backend.h"

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/engine/cpu/cpu_model.h"
#include "common/engine/cpu/cpu_weights.h"
#include "common/engine/cpu/kernels.h"
#include "common/engine/memory.h"
#include "common/engine/plugin.h"
#include "common/gguf/model_path.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

constexpr int kMaxDevices = 64;

// Returns N for "cuda:N", and nullopt for "cpu".
absl::StatusOr<std::optional<int>> CudaDevice(const std::string& device) {
  if (device == "cpu") return std::nullopt;
  absl::string_view number = device;
  int index = 0;
  if (absl::ConsumePrefix(&number, "cuda:") && absl::SimpleAtoi(number, &index) && index >= 0 &&
      index < kMaxDevices) {
    return index;
  }
  return Invalid("--device ", device, ": must be cpu or cuda:N with N from 0 to ", kMaxDevices - 1);
}

// Runs models with the native CPU kernels, on the threads given to Load.
class CpuBackend final : public Backend {
 public:
  absl::Status Check(const RunnerOptions& options) const override {
    if (!options.kernels.empty() && FindKernels(options.kernels.c_str()) == nullptr) {
      return Invalid("kernels \"", options.kernels, "\" do not run on this CPU");
    }
    return CheckDtype(options, {"auto", "float32", "bfloat16", "int8"});
  }

  absl::StatusOr<std::unique_ptr<Model>> Load(const DecoderConfig& spec, const TensorSource& weights,
                                              const RunnerOptions& options,
                                              ThreadPool& threads) const override {
    OUTRIDER_TRY(CheckNative(spec, options));
    // By default packed weights stay packed, and others are bfloat16 if this CPU has arithmetic for it.
    const bool keep_blocks = options.dtype == "auto";
    const bool bfloat16 =
        options.dtype == "bfloat16" || (options.dtype == "auto" && BestKernels().rounds_operands);
    const Storage storage = options.dtype == "int8" ? Storage::kInt8
                            : bfloat16              ? Storage::kBFloat16
                                                    : Storage::kFloat32;
    absl::StatusOr<CpuWeights> packed =
        LoadCpuWeights(weights, spec, storage, keep_blocks, threads, options.progress);
    if (absl::IsResourceExhausted(packed.status())) {
      return absl::ResourceExhaustedError(absl::StrCat(packed.status().message(), " of ", options.model_dir));
    }
    if (!packed.ok()) return packed.status();
    const int64_t block_bytes = LayOutKv(spec, storage, options.block_size).block_bytes;
    RunnerOptions sized = options;
    sized.kv_blocks = KvBlocks(spec, options, AvailableMemory(), static_cast<size_t>(block_bytes));
    return CpuModel::Create(spec, *std::move(packed), sized,
                            options.kernels.empty() ? BestKernels() : *FindKernels(options.kernels.c_str()),
                            threads);
  }
};

// A plug-in.
struct PluginDescription {
  const char* library;  // its file
  const char* symbol;   // its CreatePluginModelFunction
  absl::Span<const absl::string_view> dtypes;
  const char* how_to_build;  // shown if the file is missing
  bool is_native;            // native kernels: Load checks that they support the model; they are tested first
};

constexpr absl::string_view kCudaDtypes[] = {"auto", "bfloat16", "fp8"};
constexpr absl::string_view kTorchDtypes[] = {"auto", "float32", "bfloat16"};
const PluginDescription kCudaPlugin = {
    "liboutrider_cuda.so", "outrider_create_cuda_model", kCudaDtypes,
    "this build has no CUDA (liboutrider_cuda.so beside the program); make it with: make build CUDA=1",
    /*is_native=*/true};
const PluginDescription kTorchPlugin = {
    "liboutrider_torch.so", "outrider_create_torch_model", kTorchDtypes,
    "this build has no libtorch (liboutrider_torch.so beside the program); make it with: make build TORCH=1",
    /*is_native=*/false};

// The path: in OUTRIDER_PLUGIN_PATH if set, else where cmake --install puts it, else beside the program.
std::filesystem::path PluginPath(const PluginDescription& plugin) {
  if (const char* const folder = std::getenv("OUTRIDER_PLUGIN_PATH")) {
    return std::filesystem::path(folder) / plugin.library;
  }
  std::error_code error;
  const auto programs = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  const auto installed = programs.parent_path() / "lib" / "outrider" / plugin.library;
  return std::filesystem::exists(installed, error) ? installed : programs / plugin.library;
}

// Whether the plug-in's file exists. It may still fail to load.
bool IsBuilt(const PluginDescription& plugin) {
  std::error_code error;
  return std::filesystem::exists(PluginPath(plugin), error);
}

// Loads models through a plug-in. FAILED_PRECONDITION, on one line, if the library or one of its dependencies
// cannot be loaded; else the library's errors.
class PluginBackend final : public Backend {
 public:
  // `cuda_device`: N of cuda:N; nullopt for the CPU.
  PluginBackend(const PluginDescription& plugin, std::optional<int> cuda_device)
      : plugin_(plugin), cuda_device_(cuda_device) {}

  absl::Status Check(const RunnerOptions& options) const override {
    if (!options.kernels.empty()) {
      return Invalid("kernels \"", options.kernels, "\" are for --engine native --device cpu");
    }
    return CheckDtype(options, plugin_.dtypes);
  }
  bool IsTestedFirst() const override { return plugin_.is_native; }
  absl::StatusOr<std::unique_ptr<Model>> Load(const DecoderConfig& spec, const TensorSource& weights,
                                              const RunnerOptions& options,
                                              ThreadPool& threads) const override {
    const absl::StatusOr<void*> create =
        FindInLibrary(PluginPath(plugin_), plugin_.symbol, plugin_.how_to_build);
    if (!create.ok()) {
      return absl::FailedPreconditionError(absl::StrCat("--engine ", options.engine, " --device ",
                                                        options.device, ": ", create.status().message()));
    }
    if (plugin_.is_native) OUTRIDER_TRY(CheckNative(spec, options));
    RunnerOptions resolved = options;
    resolved.threads = threads.threads();
    absl::StatusOr<std::unique_ptr<Model>> model = absl::InternalError("not made");
    reinterpret_cast<CreatePluginModelFunction*> (*create)(spec, weights, cuda_device_, resolved, model);
    return model;
  }

 private:
  const PluginDescription& plugin_;
  const std::optional<int> cuda_device_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> BackendFor(const std::string& engine, const std::string& device) {
  const std::optional<int> cuda_device = OUTRIDER_TRY(CudaDevice(device));
  if (engine == "torch") return std::make_unique<PluginBackend>(kTorchPlugin, cuda_device);
  if (engine != "native") return Invalid("--engine ", engine, ": must be native or torch");
  if (cuda_device.has_value()) return std::make_unique<PluginBackend>(kCudaPlugin, cuda_device);
  return std::make_unique<CpuBackend>();
}

std::string DescribeEngines() {
  std::string engines = absl::StrCat("native on the CPU (", BestKernels().name, " kernels)");
  if (IsBuilt(kCudaPlugin)) absl::StrAppend(&engines, ", native on GPUs");
  if (IsBuilt(kTorchPlugin)) absl::StrAppend(&engines, ", torch");
  return engines;
}

absl::Status CheckNative(const DecoderConfig& spec, const RunnerOptions& options) {
  const std::pair<bool, const char*> features[] = {
      {spec.activation != Activation::kSilu, "another activation than SiLU"},
      {spec.norms_plus_one, "norms that are stored less 1"},
      {spec.output_norms, "norms of what attention and MLP put out"},
      {spec.embedding_scale.has_value(), "scaled embeddings"},
      {spec.query_scale.has_value(), "another scale of queries"},
      {spec.attention_softcap.has_value() || spec.final_softcap.has_value(), "soft caps"},
      {spec.sliding_rope_theta.has_value(), "two kinds of rotation"}};
  for (const auto& [is_there, what] : features) {
    if (!is_there) continue;
    return Invalid(FileOf(options.model_dir, "config.json"), ": the model has ", what,
                   ", which only --engine torch computes");
  }
  return absl::OkStatus();
}

absl::Status CheckDtype(const RunnerOptions& options, absl::Span<const absl::string_view> dtypes) {
  if (std::find(dtypes.begin(), dtypes.end(), options.dtype) != dtypes.end()) return absl::OkStatus();
  const std::string engine = options.engine == "native" ? "" : absl::StrCat(" --engine ", options.engine);
  return Invalid("--dtype ", options.dtype, ": must be one of ", absl::StrJoin(dtypes, ", "), " with", engine,
                 " --device ", options.device);
}

}  // namespace outrider
