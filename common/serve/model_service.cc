#include "common/serve/model_service.h"

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/engine/decoder/model_config.h"
#include "common/engine/decoder/safetensors.h"
#include "common/obs/log.h"
#include "common/obs/metric_families.h"
#include "common/rpc/fresh_bits.h"
#include "common/rpc/server.h"
#include "common/serve/server_process.h"
#include "common/serve/stall_watch.h"
#include "common/text/model_fingerprint.h"
#include "common/text/tokenizer.h"

namespace outrider {
namespace {

struct Flags {
  ProcessFlags process;
  RunnerOptions runner;
  WorkerOptions worker;
  double lease_seconds = 60;
  int max_draft_tokens = 16;
  double stall_seconds = 60;
};

void DefineFlags(CLI::App& app, Flags& flags) {
  app.add_option("--model", flags.runner.model_dir, "Hugging Face directory of the model")->required();
  DefineListenFlags(app, flags.process);
  app.add_option("--engine", flags.runner.engine,
                 "native: kernels of this project; torch: libtorch, exact up to rounding")
      ->capture_default_str();
  app.add_option("--device", flags.runner.device, "cpu or cuda:N")->capture_default_str();
  app.add_option(
         "--dtype", flags.runner.dtype,
         "auto, float32, bfloat16 or int8 (weights) on the CPU; auto, bfloat16 or fp8 on a GPU; auto, "
         "float32 or bfloat16 with --engine torch")
      ->capture_default_str();
  app.add_option("--tensor-parallel", flags.runner.parallel.size,
                 "processes that share the model, with --engine torch; each is started with its --rank")
      ->capture_default_str();
  app.add_option("--rank", flags.runner.parallel.rank,
                 "which of these processes this is, from 0; only rank 0 listens at any address")
      ->capture_default_str();
  app.add_option("--rendezvous", flags.runner.parallel.rendezvous,
                 "HOST:PORT where rank 0 waits for the other ranks, without authentication or encryption")
      ->capture_default_str();
  app.add_option(
         "--matmul-algorithms", flags.runner.matmul_algorithms,
         "on a GPU: file with cuBLAS's algorithms, written if it is not there; a later start uses the "
         "same ones, or ends if it cannot")
      ->type_name("FILE");
  app.add_option("--threads", flags.runner.threads, "threads that compute; 0: one per CPU")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--kv-blocks", flags.runner.kv_blocks, "blocks of the KV cache; auto: what fits the memory")
      ->transform(CLI::CheckedTransformer(std::map<std::string, int>{{"auto", 0}}) | CLI::Range(1, 1 << 24))
      ->default_str("auto");
  app.add_option("--kv-memory-fraction", flags.runner.kv_memory_fraction,
                 "of the free memory (of the device), for --kv-blocks auto; draft and target may share it")
      ->check(CLI::Range(0.001, 1.0))
      ->capture_default_str();
  app.add_option("--block-size", flags.runner.block_size, "tokens a block")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--max-batch-tokens", flags.worker.max_batch_rows, "most rows of a forward pass")
      ->check(CLI::Range(32, 1 << 16))
      ->capture_default_str();
  app.add_flag("--prefix-cache,!--no-prefix-cache", flags.worker.sequences.prefix_cache,
               "keep blocks for prompts that begin alike; on");
  app.add_option("--max-sequences", flags.worker.sequences.max_sequences, "most sequences that are kept")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--max-draft-tokens", flags.max_draft_tokens, "largest K")
      ->check(CLI::Range(1, kMaxDraftTokens))
      ->capture_default_str();
  app.add_option("--lease", flags.lease_seconds, "seconds until an untouched sequence is freed")
      ->check(CLI::Range(0.1, 1e6))
      ->capture_default_str();
  app.add_option("--stall-timeout", flags.stall_seconds,
                 "seconds without a finished step, while items wait, after which health says that the engine "
                 "hangs; more than the longest step takes; 0: never")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  DefineDrainAndLogFlags(app, "seconds that running work has after SIGTERM", flags.process);
}

// Ends the process, with one line whoever else ends it meanwhile.
[[noreturn]] void End(const absl::Status& reason) {
  static absl::Mutex mutex;
  mutex.Lock();  // for good
  if (reason.ok()) {
    LogInfo("stopped");
    std::quick_exit(0);
  }
  LogError("the model failed", {{"error", std::string(reason.message())}});
  std::quick_exit(1);
}

// The worker's life as Prometheus sees it.
class WorkerMetrics {
 public:
  WorkerMetrics(prometheus::Registry& registry, const std::string& name) {
    const auto gauge = [&](const char* metric, const char* help) {
      return AddGauge(registry, absl::StrCat(name, "_", metric), help);
    };
    const auto counter = [&](const char* metric, const char* help) {
      return AddCounter(registry, absl::StrCat(name, "_", metric), help);
    };
    const auto histogram = [&](const char* metric, const char* help,
                               const prometheus::Histogram::BucketBoundaries& buckets) {
      return AddHistogram(registry, absl::StrCat(name, "_", metric), help, buckets);
    };
    sequences_ = gauge("sequences", "Sequences that the server holds.");
    items_ = gauge("items_in_progress", "Items that are being worked on or wait for the engine.");
    blocks_used_ = gauge("kv_blocks_used", "Blocks of the KV cache in use.");
    blocks_cached_ =
        gauge("kv_blocks_cached",
              "Blocks of the KV cache that no sequence uses, kept for prompts that begin alike.");
    blocks_free_ = gauge("kv_blocks_free", "Blocks of the KV cache that are free.");
    prefix_queried_ =
        counter("prefix_cache_queries_total", "Tokens that were looked for in the prefix cache.");
    prefix_hit_ = counter("prefix_cache_hits_total", "Of them, those found and not computed again.");
    preemptions_ = counter("preemptions_total", "Sequences that lost their cache because blocks ran out.");
    step_seconds_ =
        histogram("step_duration_seconds", "Duration of a forward pass, in seconds.",
                  {1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1, 2e-1, 5e-1, 1, 2, 5});
    batch_sequences_ =
        histogram("batch_sequences", "Sequences in a forward pass.", {1, 2, 4, 8, 16, 32, 64, 128});
    batch_rows_ = histogram("batch_rows", "Rows (tokens) in a forward pass.",
                            {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024});
  }

  Worker::Hooks Hooks() {
    return {[this](const StepStats& stats) {
              step_seconds_->Observe(absl::ToDoubleSeconds(stats.duration));
              batch_sequences_->Observe(stats.sequences);
              batch_rows_->Observe(stats.rows);
            },
            [this](const SequenceStoreCounts& counts) {
              sequences_->Set(counts.sequences);
              blocks_used_->Set(counts.blocks_used);
              blocks_cached_->Set(counts.blocks_cached);
              blocks_free_->Set(counts.blocks_free);
              const auto raise = [](prometheus::Counter* counter, int64_t to) {
                counter->Increment(static_cast<double>(to) - counter->Value());
              };
              raise(prefix_queried_, counts.prefix_queried);
              raise(prefix_hit_, counts.prefix_hit);
              raise(preemptions_, counts.preemptions);
            },
            [this](int more) { items_->Increment(more); },
            // A GPU that failed does not come back in this process; whoever started it starts another.
            End};
  }

 private:
  prometheus::Gauge* sequences_;
  prometheus::Gauge* items_;
  prometheus::Gauge* blocks_used_;
  prometheus::Gauge* blocks_cached_;
  prometheus::Gauge* blocks_free_;
  prometheus::Counter* prefix_queried_;
  prometheus::Counter* prefix_hit_;
  prometheus::Counter* preemptions_;
  prometheus::Histogram* step_seconds_;
  prometheus::Histogram* batch_sequences_;
  prometheus::Histogram* batch_rows_;
};

v1::ServerInfo Describe(const Runner& runner, const Flags& flags, uint64_t tokenizer_fingerprint,
                        uint64_t weights_hash) {
  const ModelConfig& config = runner.config();
  v1::ServerInfo info;
  info.set_boot_id(FreshBits());
  info.set_fingerprint(
      ModelFingerprint(tokenizer_fingerprint, config.decoder.vocab_size, config.eos_token_ids));
  const std::filesystem::path dir = std::filesystem::weakly_canonical(flags.runner.model_dir);
  info.set_model((dir.has_filename() ? dir : dir.parent_path()).filename().string());
  info.set_vocab_size(static_cast<uint32_t>(config.decoder.vocab_size));
  info.set_max_context(static_cast<uint32_t>(config.decoder.max_position_embeddings));
  info.set_max_draft_tokens(static_cast<uint32_t>(flags.max_draft_tokens));
  info.set_max_message_bytes(kMaxMessageBytes);
  info.set_engine(flags.runner.engine);
  info.set_row_invariant(runner.row_invariant());
  info.set_device(flags.runner.device);
  info.set_dtype(runner.dtype());
  info.set_kv_blocks(static_cast<uint32_t>(runner.kv_blocks()));
  info.set_block_size(static_cast<uint32_t>(runner.block_size()));
  info.set_weight_bytes(runner.weight_bytes());
  info.set_weights_hash(weights_hash);
  info.set_version(OUTRIDER_VERSION);
  for (TokenId id : config.eos_token_ids) info.add_eos_ids(static_cast<uint32_t>(id));
  return info;
}

struct LoadedModel {
  std::unique_ptr<Runner> runner;
  uint64_t weights_hash = 0;
};

absl::StatusOr<LoadedModel> LoadModel(const RunnerOptions& options) {
  absl::StatusOr<std::unique_ptr<Runner>> runner = Runner::Load(options);
  if (!runner.ok()) return runner.status();
  // Only rank 0 says what it serves.
  if (options.parallel.rank > 0) return LoadedModel{*std::move(runner), 0};
  const absl::StatusOr<SafeTensors> weights = SafeTensors::Open(options.model_dir);
  if (!weights.ok()) return weights.status();
  return LoadedModel{*std::move(runner), weights->Hash()};
}

// Loading takes long, as does waiting for other ranks.
absl::StatusOr<LoadedModel> LoadUnderSignals(const RunnerOptions& options) {
  absl::StatusOr<LoadedModel> model;
  RunUnderSignals([&] { model = LoadModel(options); }, [] { End(absl::OkStatus()); });
  return model;
}

// What ranks other than 0 do, until rank 0 is gone. Rank 0 gets the same signals and drains, and may still
// send work here, so only a second signal ends this process. `drains` is set by the first.
[[noreturn]] void Follow(Runner& runner, const ParallelOptions& parallel, std::atomic<bool>& drains) {
  LogInfo("following rank 0", {{"rank", parallel.rank}, {"rendezvous", parallel.rendezvous}});
  absl::Status end;
  RunUnderSignals([&] { end = runner.Follow(); },
                  [&] {
                    if (drains.exchange(true)) End(absl::OkStatus());
                    LogInfo("draining", {{"until", "rank 0 ends, or another signal"}});
                  });
  // That rank 0 is gone was to be expected then, but not that this rank failed.
  End(drains && absl::IsUnavailable(end) ? absl::OkStatus() : end);
}

// Comes back only with the reason why it cannot start.
absl::Status Serve(const ModelServiceSpec& spec, Flags flags) {
  flags.worker.sequences.lease = absl::Seconds(flags.lease_seconds);
  flags.runner.max_batch_rows = flags.worker.max_batch_rows;
  flags.runner.max_sequences = flags.worker.sequences.max_sequences;
  // First of all whether it is a model that can be run, which costs nothing to know.
  if (const auto config = ReadModelConfig(flags.runner.model_dir); !config.ok()) return config.status();
  auto tokenizer = Tokenizer::Load(absl::StrCat(flags.runner.model_dir, "/tokenizer.json"));
  if (!tokenizer.ok()) return tokenizer.status();
  std::atomic<bool> drains = false;  // a rank other than 0; then rank 0's end is no failure
  flags.runner.parallel.on_lost = [&drains](const absl::Status& why) {
    End(drains ? absl::OkStatus() : why);
  };
  flags.runner.parallel.on_wait = [&parallel = flags.runner.parallel] {
    LogInfo("waiting for the other ranks",
            {{"rank", parallel.rank}, {"ranks", parallel.size}, {"rendezvous", parallel.rendezvous}});
  };
  absl::StatusOr<LoadedModel> model = LoadUnderSignals(flags.runner);
  if (!model.ok()) return model.status();
  std::unique_ptr<Runner> runner = std::move(model->runner);
  if (flags.runner.parallel.rank > 0) Follow(*runner, flags.runner.parallel, drains);
  const v1::ServerInfo info = Describe(*runner, flags, (*tokenizer)->Fingerprint(), model->weights_hash);
  tokenizer->reset();
  if (const std::optional<Quantization>& quantization = runner->config().quantization) {
    LogInfo("quantised weights unpacked",
            {{"model", info.model()}, {"from", QuantizationInWords(*quantization)}, {"to", info.dtype()}});
  }

  if (const std::string algorithms = runner->algorithms(); !algorithms.empty()) {
    LogInfo("matrix products", {{"algorithms", algorithms}});
  }

  auto registry = std::make_shared<prometheus::Registry>();
  WorkerMetrics metrics(*registry, spec.name);
  AddGauge(*registry, absl::StrCat(spec.name, "_model_info"), "1; which model is served, and how.",
           {{"model", info.model()}, {"dtype", info.dtype()}, {"device", info.device()}})
      ->Set(1);
  prometheus::Gauge* const stalled =
      AddGauge(*registry, absl::StrCat(spec.name, "_engine_stalled"), "1 while the engine hangs, else 0.");
  // The engine thread reads its items itself.
  QueuePoller poller(absl::Seconds(flags.process.busy_poll_seconds));
  std::unique_ptr<StreamService> service;
  Worker worker(std::move(runner), spec.make_sampler(), flags.worker, metrics.Hooks(),
                {.poll = [&](absl::Time deadline) { poller.Poll(deadline); },
                 .wake = [&] { poller.Wake(); },
                 .hold_answers = [&] { service->HoldAnswers(); },
                 .release_answers = [&] { service->ReleaseAnswers(); }});
  service = spec.make_service(worker, info);
  const auto started = ServerProcess::Start(flags.process, service->service(), registry, &poller);
  if (!started.ok()) return started.status();
  ServerProcess& process = **started;
  service->Serve(process.rpc());
  process.SetModelName(info.model());
  process.SetServing(true);
  LogInfo("serving", {{"listen", process.rpc().address()},
                      {"metrics_listen", process.metrics_address()},
                      {"model", info.model()},
                      {"dtype", info.dtype()},
                      {"engine", info.engine()},
                      {"device", info.device()},
                      {"kernel", worker.runner().kernel_name()},
                      {"kv_blocks", static_cast<int64_t>(info.kv_blocks())},
                      {"fingerprint", absl::StrCat(absl::Hex(info.fingerprint(), absl::kZeroPad16))}});
  const StallWatch watch("engine", absl::Seconds(flags.stall_seconds), EngineIsStuck(worker),
                         [&](bool hangs) {
                           stalled->Set(hangs ? 1 : 0);
                           process.SetLive(!hangs);
                         });
  process.AwaitEnd([&] {
    service->RefuseStreams();
    worker.Drain();
  });
  // Rounds that are running end well; then the streams are closed, and their coordinators look elsewhere.
  worker.AwaitIdle(absl::Now() + absl::Seconds(flags.process.drain_seconds));
  service->EndStreams();
  process.Exit(absl::Seconds(1));
}

}  // namespace

std::function<bool()> EngineIsStuck(const Worker& worker) {
  return [&worker, last = uint64_t{0}]() mutable {
    const Worker::Progress progress = worker.progress();
    return progress.busy && std::exchange(last, progress.iterations) == progress.iterations;
  };
}

int RunModelService(const ModelServiceSpec& spec, int argc, char** argv) {
  Flags flags;
  flags.process.server.listen = spec.listen;
  flags.process.metrics_listen = spec.metrics_listen;
  CLI::App app(spec.description, absl::StrCat("outrider-", spec.name));
  DefineFlags(app, flags);
  if (spec.define_flags) spec.define_flags(app);
  return RunProcess(app, argc, argv, spec.name, flags.process, [&] { return Serve(spec, flags); });
}

}  // namespace outrider
