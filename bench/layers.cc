// Compares stage by stage the results of two backends for the same tokens, and names the first difference
// that rounding does not explain.
//
//   bench_layers MODEL_DIR ENGINE:DEVICE:DTYPE[@DIR] ENGINE:DEVICE:DTYPE[@DIR] [TOLERANCE]
//
// for example: bench_layers models/tiny-target native:cpu:float32 torch:cpu:float32
//
// DIR is another folder for this backend, of a model with the same shapes.
// The tokens are a prompt and then a few more, as in a verification. For each stage it prints the root mean
// square of the differences, which decides, and the largest difference, both as shares of the root mean
// square of the first backend's results. The default TOLERANCE covers the rounding of the dtypes. Exits with
// 1 if a stage differs.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/engine/runner.h"
#include "common/engine/stage_comparison.h"

namespace outrider {
namespace {

absl::StatusOr<RunnerOptions> OptionsFor(const std::string& model_dir, const std::string& where) {
  const std::pair<std::string, std::string> backend_and_dir = absl::StrSplit(where, absl::MaxSplits('@', 1));
  const auto& [backend, other_dir] = backend_and_dir;
  const std::vector<std::string> parts = absl::StrSplit(backend, ':');
  if (parts.size() < 3)
    return absl::InvalidArgumentError(absl::StrCat("'", where, "' is not ENGINE:DEVICE:DTYPE[@DIR]"));
  RunnerOptions options;
  options.model_dir = other_dir.empty() ? model_dir : other_dir;
  options.engine = parts.front();
  options.dtype = parts.back();
  options.device = absl::StrJoin(parts.begin() + 1, parts.end() - 1, ":");  // cuda:N
  options.kv_blocks = (kComparedTokens + options.block_size - 1) / options.block_size;
  return options;
}

// The largest difference that rounding explains, even over many layers: more than correct engines show.
double Rounding(const std::string& dtype) {
  if (dtype == "float32") return 1e-4;
  return dtype == "bfloat16" ? 0.1 : 0.3;
}

struct Computed {
  std::vector<StageRecord> passes;
  double rounding = 0;  // of the dtype
};

absl::StatusOr<Computed> Compute(const std::string& model_dir, const std::string& where) {
  absl::StatusOr<RunnerOptions> options = OptionsFor(model_dir, where);
  if (!options.ok()) return options.status();
  Computed computed;
  std::vector<StageRecord>& passes = computed.passes;
  options->observe = [&](const StageOutput& output) { passes.back().Add(output); };
  const absl::StatusOr<std::unique_ptr<Runner>> runner = Runner::Load(*options);
  if (!runner.ok()) return runner.status();
  computed.rounding = Rounding((*runner)->dtype());
  std::vector<BlockId> blocks(static_cast<size_t>(options->kv_blocks));
  std::iota(blocks.begin(), blocks.end(), 0);
  const absl::Status status =
      RecordPasses((*runner)->model(), (*runner)->config().decoder, options->block_size, blocks, passes);
  if (!status.ok()) return status;
  return computed;
}

// Returns whether all stages agree.
absl::StatusOr<bool> Run(const std::string& model, const std::string& a, const std::string& b,
                         std::optional<double> tolerance) {
  const absl::StatusOr<Computed> expected = Compute(model, a), found = Compute(model, b);
  if (!expected.ok()) return expected.status();
  if (!found.ok()) return found.status();
  const double rounding = tolerance.value_or(std::max(expected->rounding, found->rounding));
  std::string first;
  for (size_t pass = 0; pass < std::size(kComparedPasses); ++pass) {
    const auto compared = DifferencesOf(expected->passes[pass], found->passes[pass]);
    if (!compared.ok()) return compared.status();
    std::printf("%-25s  difference  largest\n", absl::StrCat(kComparedPasses[pass], " rows").c_str());
    for (const StageDifference& stage : *compared)
      std::printf("  %-25s %9.1e %8.1e\n", stage.name.c_str(), stage.difference, stage.largest);
    const StageDifference* const differs = FirstAbove(*compared, rounding);
    if (first.empty() && differs != nullptr)
      first = absl::StrCat(kComparedPasses[pass], " rows, ", differs->finding);
  }
  std::printf("%s\n", first.empty() ? "no difference is larger than rounding explains"
                                    : absl::StrCat("the first that differs: ", first).c_str());
  return first.empty();
}

int Main(int argc, char** argv) {
  std::optional<double> tolerance;
  if (argc == 5 && !absl::SimpleAtod(argv[4], &tolerance.emplace())) argc = 0;
  if (argc < 4 || argc > 5) {
    std::fprintf(
        stderr,
        "usage: bench_layers MODEL_DIR ENGINE:DEVICE:DTYPE[@DIR] ENGINE:DEVICE:DTYPE[@DIR] [TOLERANCE]\n");
    return 1;
  }
  const absl::StatusOr<bool> alike = Run(argv[1], argv[2], argv[3], tolerance);
  if (!alike.ok()) std::fprintf(stderr, "bench_layers: %s\n", std::string(alike.status().message()).c_str());
  return alike.ok() && *alike ? 0 : 1;
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) { return outrider::Main(argc, argv); }
