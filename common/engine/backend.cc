#include "common/engine/backend.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/engine/cpu/cpu_backend.h"
#include "common/engine/cuda_plugin.h"

namespace outrider {
namespace {

constexpr int kMaxDevices = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> BackendFor(const std::string& device) {
  if (device == "cpu") return std::make_unique<CpuBackend>();
  absl::string_view number = device;
  int index = 0;
  if (absl::ConsumePrefix(&number, "cuda:") && absl::SimpleAtoi(number, &index) && index >= 0 &&
      index < kMaxDevices) {
    return std::make_unique<CudaPlugin>(index);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--device ", device, ": must be cpu or cuda:N with N from 0 to ", kMaxDevices - 1));
}

absl::Status CheckDtype(const RunnerOptions& options, absl::Span<const absl::string_view> dtypes) {
  if (std::find(dtypes.begin(), dtypes.end(), options.dtype) != dtypes.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--dtype ", options.dtype, ": must be one of ",
                                                 absl::StrJoin(dtypes, ", "), " with --device ",
                                                 options.device));
}

}  // namespace outrider
