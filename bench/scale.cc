// Measures how the engine scales: the cost of a step of plain decoding by sequence length and batch size, and
// by the number of idle sequences. The model has random weights and the shipped target's shape, with a longer
// context.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "bench/generated_model.h"
#include "bench/run_benchmark.h"
#include "bench/spread.h"
#include "bench/temporary_folder.h"
#include "common/engine/worker.h"
#include "common/kv/prefix_hash.h"
#include "target_service/rejection_sampler.h"

namespace outrider {
namespace {

constexpr int kChunk = 256;  // prompt rows per pass

struct Flags {
  std::vector<int> contexts = {128, 512, 1024, 2048, 4096};
  std::vector<int> batches = {1, 4, 16, 64};
  std::vector<int> idle = {10, 100, 1000, 10000};
  std::string dtype = "auto";
  int threads = 0;
  double seconds = 0.5;
};

double Microseconds(absl::Duration duration) { return absl::ToDoubleMicroseconds(duration); }

std::vector<TokenId> SomeTokens(int count, int salt) {
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) tokens[i] = (i * 37 + salt * 1009 + salt / 4096 + 5) % 4096;
  return tokens;
}

// Every sequence has its own blocks, so that none finds another's keys and values in the CPU's caches.
class LengthBench {
 public:
  LengthBench(Runner& runner, const Flags& flags) : runner_(runner), flags_(flags) {
    const int positions = *std::max_element(flags.contexts.begin(), flags.contexts.end()) + 1;
    const int each = (positions + runner.block_size() - 1) / runner.block_size();
    tables_.resize(static_cast<size_t>(*std::max_element(flags.batches.begin(), flags.batches.end())));
    BlockId next = 0;
    for (std::vector<BlockId>& table : tables_) {
      for (int i = 0; i < each; ++i) table.push_back(next++);
    }
  }

  absl::StatusOr<nlohmann::ordered_json> Run() {
    if (absl::Status status = Fill(); !status.ok()) return status;
    nlohmann::ordered_json rows;
    absl::PrintF("microseconds a step of plain decoding\n%10s", "context");
    for (int batch : flags_.batches) absl::PrintF(" %11s", absl::StrFormat("batch %d", batch));
    for (int context : flags_.contexts) {
      absl::PrintF("\n%10d", context);
      for (int batch : flags_.batches) {
        auto step = Step(batch, context);
        if (!step.ok()) return step.status();
        absl::PrintF(" %11.0f", *step);
        std::fflush(stdout);
        rows.push_back({{"context", context}, {"batch", batch}, {"step_microseconds", *step}});
      }
    }
    absl::PrintF("\n");
    return rows;
  }

 private:
  // Fills every sequence's blocks as a prompt of full length would.
  absl::Status Fill() {
    const int length = *std::max_element(flags_.contexts.begin(), flags_.contexts.end());
    const std::vector<TokenId> tokens = SomeTokens(length, 0);
    for (int at = 0; at < length; at += kChunk) {
      const SequenceRows rows{
          .tokens = absl::MakeConstSpan(tokens).subspan(at, kChunk), .position = at, .blocks = tables_[0]};
      if (auto done = runner_.Forward({&rows, 1}); !done.ok()) return done.status();
    }
    const auto each = static_cast<BlockId>(tables_[0].size());
    // Touches the whole pool, so that memory first touched later is not attributed to a sequence.
    for (BlockId block = each; block < runner_.kv_blocks(); ++block) runner_.CopyBlock(block % each, block);
    return absl::OkStatus();
  }

  absl::StatusOr<double> Step(int batch, int context) {
    const TokenId token = 1;
    std::vector<SequenceRows> rows;
    rows.reserve(static_cast<size_t>(batch));
    for (int i = 0; i < batch; ++i) {
      rows.push_back({.tokens = {&token, 1}, .position = context, .blocks = tables_[i], .logit_rows = 1});
    }
    std::vector<double> times;
    const absl::Time end = absl::Now() + absl::Seconds(flags_.seconds);
    while (times.size() < 3 || absl::Now() < end) {
      const absl::Time start = absl::Now();
      if (auto done = runner_.Forward(rows); !done.ok()) return done.status();
      times.push_back(Microseconds(absl::Now() - start));
    }
    return Median(times);
  }

  Runner& runner_;
  const Flags& flags_;
  std::vector<std::vector<BlockId>> tables_;
};

// A target with sequences that were used once, and one active sequence.
class IdleBench {
 public:
  IdleBench(std::unique_ptr<Runner> runner, const Flags& flags)
      : flags_(flags),
        worker_(std::move(runner), std::make_unique<RejectionSampler>(),
                {.sequences = {.max_sequences = *std::max_element(flags.idle.begin(), flags.idle.end()) + 2,
                               .lease = absl::Hours(1)}},
                {}) {
    auto params = std::make_shared<SequenceParams>();
    params->sampling.temperature = 0;
    params_ = std::move(params);
  }

  absl::StatusOr<nlohmann::ordered_json> Run() {
    nlohmann::ordered_json rows;
    absl::PrintF("\n%10s %14s %14s %18s\n", "idle", "round us", "idle CPU %", "bytes a sequence");
    if (absl::Status status = RunRound(); !status.ok()) return status;
    const double memory_before = ResidentBytes();
    int sequences = 0;
    for (int idle : flags_.idle) {
      for (; sequences < idle; ++sequences) {
        if (absl::Status status = OpenIdle(sequences); !status.ok()) return status;
      }
      std::vector<double> times;
      const absl::Time end = absl::Now() + absl::Seconds(2 * flags_.seconds);
      while (times.size() < 3 || (absl::Now() < end && tokens_.size() < 4000)) {
        const absl::Time start = absl::Now();
        if (absl::Status status = RunRound(); !status.ok()) return status;
        times.push_back(Microseconds(absl::Now() - start));
      }
      const double round = Median(times);
      const double bytes = (ResidentBytes() - memory_before) / sequences;
      const double cpu = IdleCpu();
      absl::PrintF("%10d %14.0f %14.2f %18.0f\n", idle, round, 100 * cpu, bytes);
      rows.push_back({{"idle_sequences", idle},
                      {"round_microseconds", round},
                      {"idle_cpu_share", cpu},
                      {"bytes_per_sequence", bytes}});
      // Restart the active sequence, so that its length does not affect the next figure.
      tokens_.resize(1);
    }
    return rows;
  }

 private:
  // Starts a short sequence that stays idle.
  absl::Status OpenIdle(int number) {
    WorkItem item;
    item.id = {1, static_cast<uint64_t>(number)};
    item.round = 1;
    item.prefix_hash = kEmptyPrefixHash;
    item.tokens = SomeTokens(worker_.runner().block_size(), number);
    item.work = AppendWork{};
    return Submit(std::move(item)).status();
  }

  // One round of plain decoding.
  absl::Status RunRound() {
    WorkItem item;
    item.id = {2, 0};
    item.round = ++round_;
    item.base = static_cast<uint32_t>(tokens_.size() - 1);
    item.tokens = {tokens_.back()};
    item.prefix_hash = PrefixHash(std::span(tokens_).first(tokens_.size() - 1));
    item.work = VerifyWork{};
    absl::StatusOr<TokenId> token = Submit(std::move(item));
    if (token.ok()) tokens_.push_back(*token);
    return token.status();
  }

  // Submits an item and returns the token of its answer; 0 if there is none.
  absl::StatusOr<TokenId> Submit(WorkItem item) {
    absl::Notification answered;
    absl::StatusOr<TokenId> result;
    item.params = params_;
    item.params_hash = 1;
    item.answer = [&](const Answer& answer) {
      result = answer.verdict != nullptr ? answer.verdict->token : 0;
      if (!answer.status.ok()) result = answer.status;
      answered.Notify();
    };
    worker_.Submit(std::move(item));
    answered.WaitForNotification();
    return result;
  }

  static double ResidentBytes() {
    std::ifstream statm("/proc/self/statm");
    double size = 0, resident = 0;
    statm >> size >> resident;
    return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
  }

  // The share of one CPU that is used without any requests.
  static double IdleCpu() {
    const auto used = [] {
      rusage usage;
      getrusage(RUSAGE_SELF, &usage);
      return absl::DurationFromTimeval(usage.ru_utime) + absl::DurationFromTimeval(usage.ru_stime);
    };
    constexpr absl::Duration kWatched = absl::Seconds(2);
    const absl::Duration before = used();
    absl::SleepFor(kWatched);
    return absl::FDivDuration(used() - before, kWatched);
  }

  const Flags& flags_;
  std::shared_ptr<const SequenceParams> params_;
  std::vector<TokenId> tokens_ = {1};
  uint64_t round_ = 0;
  Worker worker_;
};

absl::StatusOr<nlohmann::ordered_json> Measure(const Flags& flags) {
  const TemporaryFolder folder;
  if (!folder.made() || !WriteModel(folder.path(), ModelShape(), RandomRows())) {
    return absl::UnavailableError("cannot write a model to the temporary folder");
  }
  const int longest = *std::max_element(flags.contexts.begin(), flags.contexts.end());
  const int widest = *std::max_element(flags.batches.begin(), flags.batches.end());
  RunnerOptions options;
  options.model_dir = folder.path();
  options.dtype = flags.dtype;
  options.threads = flags.threads;
  options.kv_blocks = std::max(widest * (longest / options.block_size + 2),
                               *std::max_element(flags.idle.begin(), flags.idle.end()) + 1000);
  auto runner = Runner::Load(options);
  if (!runner.ok()) return runner.status();
  nlohmann::ordered_json report;
  report["dtype"] = (*runner)->dtype();
  report["kernels"] = (*runner)->kernel_name();
  report["threads"] = (*runner)->threads();
  absl::PrintF("%s %s, %d threads, %.0f MB of weights, %.0f MB of cache\n", (*runner)->dtype(),
               (*runner)->kernel_name(), (*runner)->threads(), (*runner)->weight_bytes() / 1e6,
               1e-6 * static_cast<double>((*runner)->bytes_per_block()) * (*runner)->kv_blocks());
  auto lengths = LengthBench(**runner, flags).Run();
  if (!lengths.ok()) return lengths.status();
  report["length"] = *lengths;
  auto idle = IdleBench(*std::move(runner), flags).Run();
  if (!idle.ok()) return idle.status();
  report["idle"] = *idle;
  return report;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Measures the cost of sequence length, batch size and idle sequences.", "bench_scale");
  AddNumber(app, "--context", flags.contexts, "tokens in the cache of each sequence", kChunk / 2, 8000);
  AddNumber(app, "--batch", flags.batches, "sequences that share a step", 1, 256);
  AddNumber(app, "--idle", flags.idle, "idle sequences, ascending", 1, 1 << 20);
  app.add_option("--dtype", flags.dtype, "auto, float32 or bfloat16")->capture_default_str();
  app.add_option("--threads", flags.threads, "0: one per CPU")->capture_default_str();
  AddNumber(app, "--seconds", flags.seconds, "seconds per figure", 0.01, 100.0);
  return RunBenchmark(app, argc, argv, [&] { return Measure(flags); });
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) { return outrider::Main(argc, argv); }
