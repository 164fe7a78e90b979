#include "common/engine/cuda_plugin.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace outrider {
namespace {

constexpr int kMaxDevices = 64;

}  // namespace

absl::StatusOr<std::optional<int>> ParseDevice(const std::string& device) {
  if (device == "cpu") return std::nullopt;
  absl::string_view number = device;
  int index = 0;
  if (!absl::ConsumePrefix(&number, "cuda:") || !absl::SimpleAtoi(number, &index) || index < 0 ||
      index >= kMaxDevices) {
    return absl::InvalidArgumentError(
        absl::StrCat("--device ", device, ": must be cpu or cuda:N with N from 0 to ", kMaxDevices - 1));
  }
  return index;
}

absl::StatusOr<std::unique_ptr<Model>> LoadDeviceModel(const DecoderSpec& spec,
                                                       const DeviceModelOptions& options) {
  const auto refuse = [&](const char* why) {
    return absl::FailedPreconditionError(absl::StrCat("--device cuda:", options.device, ": ", why));
  };
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path library = program.parent_path() / "liboutrider_cuda.so";
  if (!std::filesystem::exists(library, error)) {
    return refuse(
        "this build has no CUDA (liboutrider_cuda.so beside the program); make it with: make build CUDA=1");
  }
  // It stays for good: CUDA's runtime cannot be unloaded.
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return refuse(dlerror());
  auto* const create = reinterpret_cast<CreateDeviceModelFunction*>(dlsym(handle, kCreateDeviceModel));
  if (create == nullptr) return refuse(dlerror());
  absl::StatusOr<std::unique_ptr<Model>> model = absl::InternalError("not made");
  create(spec, options, model);
  return model;
}

}  // namespace outrider
