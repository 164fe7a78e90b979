#include "common/engine/cpu/cpu_backend.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/engine/cpu/cpu_model.h"
#include "common/engine/cpu/cpu_weights.h"
#include "common/engine/cpu/kernels.h"
#include "common/engine/kv_size.h"
#include "common/engine/memory.h"

namespace outrider {
namespace {

Storage StorageFor(const std::string& dtype) {
  if (dtype == "int8") return Storage::kInt8;
  if (dtype == "auto") return CpuPrefersBFloat16() ? Storage::kBFloat16 : Storage::kFloat32;
  return dtype == "bfloat16" ? Storage::kBFloat16 : Storage::kFloat32;
}

}  // namespace

absl::Status CpuBackend::Check(const RunnerOptions& options) const {
  if (!options.kernels.empty() && FindKernels(options.kernels.c_str()) == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("kernels \"", options.kernels, "\" do not run on this CPU"));
  }
  return CheckDtype(options, {"auto", "float32", "bfloat16", "int8"});
}

absl::StatusOr<std::unique_ptr<Model>> CpuBackend::Load(const DecoderSpec& spec, const TensorSource& weights,
                                                        const RunnerOptions& options,
                                                        ThreadPool& threads) const {
  if (absl::Status status = CheckNative(spec, options); !status.ok()) return status;
  const Storage storage = StorageFor(options.dtype);
  absl::StatusOr<CpuWeights> packed = LoadCpuWeights(weights, spec, storage, threads, options.progress);
  if (absl::IsResourceExhausted(packed.status())) {
    return absl::ResourceExhaustedError(absl::StrCat(packed.status().message(), " of ", options.model_dir));
  }
  if (!packed.ok()) return packed.status();
  const int kv_blocks =
      KvBlocks(spec, options, AvailableMemory(), LayOutKv(spec, storage, options.block_size).block_bytes);
  return CpuModel::Create(
      spec, *std::move(packed), {kv_blocks, options.block_size, options.max_batch_rows, options.observe},
      options.kernels.empty() ? BestKernels() : *FindKernels(options.kernels.c_str()), threads);
}

}  // namespace outrider
