// How long one forward pass takes: rows of one sequence at a context of 256, as in verification of a draft.
//
//   bench_step MODEL_DIR [DTYPE [THREADS [KERNELS]]] [--benchmark_...]
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "common/engine/runner.h"

namespace outrider {
namespace {

constexpr int kContext = 256;

void Step(benchmark::State& state, Runner& runner, int rows) {
  std::vector<BlockId> blocks(static_cast<size_t>(runner.kv_blocks()));
  std::iota(blocks.begin(), blocks.end(), 0);
  std::vector<TokenId> tokens(kContext);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(i * 37 % 1000);
  SequenceRows prompt{.tokens = tokens, .position = 0, .blocks = blocks, .logit_rows = 0};
  if (!runner.Forward({&prompt, 1}).ok()) std::abort();
  SequenceRows step{.tokens = absl::MakeConstSpan(tokens).first(static_cast<size_t>(rows)),
                    .position = kContext,
                    .blocks = blocks,
                    .logit_rows = rows};
  // On a busy machine the mean tells little; the fastest step is what the code costs.
  std::chrono::duration<double, std::micro> fastest{1e9};
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    if (!runner.Forward({&step, 1}).ok()) std::abort();
    fastest = std::min<decltype(fastest)>(fastest, std::chrono::steady_clock::now() - start);
  }
  state.counters["fastest_us"] = fastest.count();
}

int Main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_step MODEL_DIR [DTYPE [THREADS [KERNELS]]] [--benchmark_...]\n");
    return 1;
  }
  RunnerOptions options;
  options.model_dir = argv[1];
  if (argc > 2) options.dtype = argv[2];
  if (argc > 3) options.threads = std::atoi(argv[3]);
  if (argc > 4) options.kernels = argv[4];
  options.kv_blocks = 64;
  absl::StatusOr<std::unique_ptr<Runner>> runner = Runner::Load(options);
  if (!runner.ok()) {
    std::fprintf(stderr, "%s\n", runner.status().ToString().c_str());
    return 1;
  }
  std::printf("%s %s, %d threads, %zu MB of weights\n", (*runner)->dtype().c_str(),
              (*runner)->kernel_name().c_str(), (*runner)->threads(), (*runner)->weight_bytes() >> 20);
  for (const int rows : {1, 2, 3, 5, 9, 17, 256}) {
    benchmark::RegisterBenchmark(("rows:" + std::to_string(rows)).c_str(),
                                 [&runner, rows](benchmark::State& state) { Step(state, **runner, rows); })
        ->Unit(benchmark::kMicrosecond)
        ->UseRealTime();
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) { return outrider::Main(argc, argv); }
