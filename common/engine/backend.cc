#include "common/engine/backend.h"

#include <algorithm>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/engine/cpu/cpu_backend.h"
#include "common/engine/cpu/kernels.h"
#include "common/engine/plugin.h"

namespace outrider {
namespace {

constexpr int kMaxDevices = 64;

// N of cuda:N, nothing for the CPU.
absl::StatusOr<std::optional<int>> CudaDevice(const std::string& device) {
  if (device == "cpu") return std::nullopt;
  absl::string_view number = device;
  int index = 0;
  if (absl::ConsumePrefix(&number, "cuda:") && absl::SimpleAtoi(number, &index) && index >= 0 &&
      index < kMaxDevices) {
    return index;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--device ", device, ": must be cpu or cuda:N with N from 0 to ", kMaxDevices - 1));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> BackendFor(const std::string& engine, const std::string& device) {
  const absl::StatusOr<std::optional<int>> cuda_device = CudaDevice(device);
  if (!cuda_device.ok()) return cuda_device.status();
  if (engine == "torch") return std::make_unique<PluginBackend>(kTorchPlugin, *cuda_device);
  if (engine != "native") {
    return absl::InvalidArgumentError(absl::StrCat("--engine ", engine, ": must be native or torch"));
  }
  if (cuda_device->has_value()) return std::make_unique<PluginBackend>(kCudaPlugin, *cuda_device);
  return std::make_unique<CpuBackend>();
}

std::string DescribeEngines() {
  std::string engines = absl::StrCat("native on the CPU (", BestKernels().name, " kernels)");
  if (IsBuilt(kCudaPlugin)) absl::StrAppend(&engines, ", native on GPUs");
  if (IsBuilt(kTorchPlugin)) absl::StrAppend(&engines, ", torch");
  return engines;
}

absl::Status CheckNative(const DecoderSpec& spec, const RunnerOptions& options) {
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
    return absl::InvalidArgumentError(absl::StrCat(options.model_dir, "/config.json: the model has ", what,
                                                   ", which only --engine torch computes"));
  }
  return absl::OkStatus();
}

absl::Status CheckDtype(const RunnerOptions& options, absl::Span<const absl::string_view> dtypes) {
  if (std::find(dtypes.begin(), dtypes.end(), options.dtype) != dtypes.end()) return absl::OkStatus();
  const std::string engine = options.engine == "native" ? "" : absl::StrCat(" --engine ", options.engine);
  return absl::InvalidArgumentError(absl::StrCat("--dtype ", options.dtype, ": must be one of ",
                                                 absl::StrJoin(dtypes, ", "), " with", engine, " --device ",
                                                 options.device));
}

}  // namespace outrider
