// Measures one forward pass: sequences with a context of 256 tokens each, and a few new rows, as in
// verification of a draft. On a GPU the logits are judged on the device, as in service, and many sequences
// and drafting of K tokens are measured too.
//
//   bench_step MODEL_DIR [DTYPE [THREADS [KERNELS]]] [--engine=torch] [--device=cuda:N] [--benchmark_...]
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/engine/batch.h"
#include "common/engine/runner.h"

namespace outrider {
namespace {

constexpr int kContext = 256;
constexpr int kBlocksPerSequence = 32;  // of 16 tokens: the context and as many new rows
constexpr int kDraftTopN = 64;

// The work of a step.
struct Shape {
  int sequences = 1;
  int rows = 1;          // rows to verify
  int draft_tokens = 0;  // tokens to draft instead, after a single row
};

// Sequences whose context is in the cache.
class Sequences {
 public:
  Sequences(Runner& runner, const Shape& shape) : runner_(runner) {
    const int count = shape.sequences, rows = shape.rows;
    tokens_.resize(kContext);
    for (size_t i = 0; i < tokens_.size(); ++i) tokens_[i] = static_cast<TokenId>(i * 37 % 1000);
    for (int s = 0; s < count; ++s) {
      auto& blocks = blocks_.emplace_back(static_cast<size_t>(kBlocksPerSequence));
      std::iota(blocks.begin(), blocks.end(), s * kBlocksPerSequence);
      const SequenceRows prompt{.tokens = tokens_, .position = 0, .blocks = blocks, .logit_rows = 0};
      Forward({&prompt, 1});
    }
    for (int i = 1; i < rows; ++i) {
      const TokenId token = tokens_[static_cast<size_t>(i)];
      AppendToChain(token, {.form = Distribution::Form::kPointMass, .ids = {token}, .total = 1}, draft_);
    }
    tasks_.resize(static_cast<size_t>(count));
    for (int s = 0; s < count; ++s) {
      DeviceTask& task = tasks_[static_cast<size_t>(s)];
      task = {.params = &params_, .round_start = kContext, .work = VerifyTask{.draft = draft_}};
      if (shape.draft_tokens > 0) task.work = ProposeTask{.draft_tokens = shape.draft_tokens};
      step_.push_back({.tokens = absl::MakeConstSpan(tokens_).first(static_cast<size_t>(rows)),
                       .position = kContext,
                       .blocks = blocks_[static_cast<size_t>(s)],
                       .logit_rows = rows,
                       .task = runner.CanRun(task) ? &task : nullptr});
    }
  }

  void Step() {
    Forward(step_);
    for (const DeviceTask& task : tasks_) Check(task.status);
  }

 private:
  static void Check(const absl::Status& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "bench_step: %s\n", std::string(status.message()).c_str());
    std::exit(1);
  }
  void Forward(absl::Span<const SequenceRows> batch) { Check(runner_.Forward(batch).status()); }

  Runner& runner_;
  const SequenceParams params_{.draft_top_n = kDraftTopN};
  std::vector<TokenId> tokens_;
  std::vector<std::vector<BlockId>> blocks_;
  Proposal draft_;
  std::vector<DeviceTask> tasks_;
  std::vector<SequenceRows> step_;
};

void Step(benchmark::State& state, Runner& runner, const Shape& shape) {
  Sequences batch(runner, shape);
  batch.Step();  // on a GPU, captures the step's graph
  // On a busy machine the mean says little; the fastest step is the cost of the code.
  std::chrono::duration<double, std::micro> fastest{1e9};
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    batch.Step();
    fastest = std::min<decltype(fastest)>(fastest, std::chrono::steady_clock::now() - start);
  }
  state.counters["fastest_us"] = fastest.count();
}

// The elements of the matrices that each row is multiplied by.
int64_t Parameters(const DecoderConfig& config) {
  const int64_t hidden = config.hidden_size;
  const int64_t attention = 2 * hidden * config.head_dim * (config.heads + config.kv_heads);
  return config.layers * (attention + 3 * hidden * config.intermediate_size) + hidden * config.vocab_size;
}

void Register(Runner& runner, const Shape& shape) {
  std::string name = shape.sequences == 1 ? "" : absl::StrFormat("sequences:%d/", shape.sequences);
  name += shape.draft_tokens > 0 ? absl::StrFormat("draft:%d", shape.draft_tokens)
                                 : absl::StrFormat("rows:%d", shape.rows);
  benchmark::RegisterBenchmark(name.c_str(),
                               [&runner, shape](benchmark::State& state) { Step(state, runner, shape); })
      ->Unit(benchmark::kMicrosecond)
      ->UseRealTime();
}

int Main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  RunnerOptions options;
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    if (absl::ConsumePrefix(&word, "--device=")) {
      options.device = std::string(word);
    } else if (absl::ConsumePrefix(&word, "--engine=")) {
      options.engine = std::string(word);
    } else {
      words.emplace_back(word);
    }
  }
  if (words.empty() || absl::StartsWith(words[0], "--")) {
    std::fprintf(stderr,
                 "usage: bench_step MODEL_DIR [DTYPE [THREADS [KERNELS]]] [--engine=torch] [--device=cuda:N] "
                 "[--benchmark_...]\n");
    return 1;
  }
  options.model_dir = words[0];
  if (words.size() > 1) options.dtype = words[1];
  if (words.size() > 2) options.threads = std::atoi(words[2].c_str());
  if (words.size() > 3) options.kernels = words[3];
  const bool device = options.device != "cpu";
  const std::vector<int> counts = device ? std::vector<int>{1, 2, 4, 8, 16, 32, 64} : std::vector<int>{1};
  options.kv_blocks = counts.back() * kBlocksPerSequence;
  absl::StatusOr<std::unique_ptr<Runner>> runner = Runner::Load(options);
  if (!runner.ok()) {
    std::fprintf(stderr, "%s\n", runner.status().ToString().c_str());
    return 1;
  }
  std::printf("%s %s, %d threads, %zu MB of weights\n", (*runner)->dtype().c_str(),
              (*runner)->kernel_name().c_str(), (*runner)->threads(), (*runner)->weight_bytes() >> 20);
  benchmark::AddCustomContext("weight_bytes", std::to_string((*runner)->weight_bytes()));
  const DecoderConfig& decoder = (*runner)->config().decoder;
  benchmark::AddCustomContext("parameters", std::to_string(Parameters(decoder)));
  benchmark::AddCustomContext("vocab_size", std::to_string(decoder.vocab_size));
  benchmark::AddCustomContext("hidden_size", std::to_string(decoder.hidden_size));
  benchmark::AddCustomContext(
      "kv_bytes_per_token",
      std::to_string((*runner)->bytes_per_block() / static_cast<size_t>((*runner)->block_size())));
  for (const int rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 64}) Register(**runner, {.rows = rows});
  if (!device) Register(**runner, {.rows = kContext});
  for (const int count : counts) {
    if (count == 1) continue;
    for (const int rows : {1, 5}) Register(**runner, {.sequences = count, .rows = rows});
  }
  const SequenceParams params{.draft_top_n = kDraftTopN};
  if ((*runner)->CanRun({.params = &params, .work = ProposeTask{.draft_tokens = 1}})) {
    for (const int count : {1, 8}) {
      for (const int k : {1, 2, 4, 6}) Register(**runner, {.sequences = count, .draft_tokens = k});
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) { return outrider::Main(argc, argv); }
