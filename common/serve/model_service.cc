#include "common/serve/model_service.h"

#include <signal.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/engine/decoder/model_config.h"
#include "common/obs/flags.h"
#include "common/obs/log.h"
#include "common/obs/metric_families.h"
#include "common/obs/metrics_server.h"
#include "common/rpc/fresh_bits.h"
#include "common/rpc/security_flags.h"
#include "common/rpc/server.h"
#include "common/text/model_fingerprint.h"
#include "common/text/tokenizer.h"

namespace outrider {
namespace {

struct Flags {
  ServerOptions server;
  std::string metrics_listen;
  RunnerOptions runner;
  WorkerOptions worker;
  double lease_seconds = 60;
  double drain_seconds = 20;
  int max_draft_tokens = 16;
  std::string log_level = "info";
  std::string log_format = "auto";
};

void DefineFlags(CLI::App& app, Flags& flags) {
  app.add_option("--model", flags.runner.model_dir, "Hugging Face directory of the model")->required();
  app.add_option("--listen", flags.server.listen, "gRPC address, HOST:PORT or unix:PATH; port 0 picks one")
      ->capture_default_str();
  app.add_option("--metrics-listen", flags.metrics_listen, "address of /metrics; empty: none")
      ->capture_default_str();
  app.add_option("--health-listen", flags.server.health_listen,
                 "a second address with grpc.health.v1 only, without TLS; empty: none");
  DefineServerSecurityFlags(app, flags.server.security);
  app.add_option("--device", flags.runner.device, "cpu or cuda:N")->capture_default_str();
  app.add_option("--dtype", flags.runner.dtype,
                 "auto, float32, bfloat16 or int8 (weights) on the CPU; auto, bfloat16 or fp8 on a GPU")
      ->capture_default_str();
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
  app.add_option("--drain", flags.drain_seconds, "seconds that running work has after SIGTERM")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--log-level", flags.log_level, "debug, info, warning or error")->capture_default_str();
  app.add_option("--log-format", flags.log_format, "auto, json or text")->capture_default_str();
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
    waiting_ = gauge("items_in_progress", "Items that are being worked on or wait for the engine.");
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
              waiting_->Set(counts.in_progress);
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
            // A GPU that failed does not come back in this process; whoever started it starts another.
            [](const absl::Status& failure) {
              LogError("the model failed", {{"error", std::string(failure.message())}});
              std::quick_exit(1);
            }};
  }

 private:
  prometheus::Gauge* sequences_;
  prometheus::Gauge* waiting_;
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

v1::ServerInfo Describe(const Runner& runner, const Flags& flags, uint64_t tokenizer_fingerprint) {
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
  info.set_device(flags.runner.device);
  info.set_dtype(runner.dtype());
  info.set_kv_blocks(static_cast<uint32_t>(runner.kv_blocks()));
  info.set_block_size(static_cast<uint32_t>(runner.block_size()));
  info.set_weight_bytes(runner.weight_bytes());
  info.set_version(OUTRIDER_VERSION);
  for (TokenId id : config.eos_token_ids) info.add_eos_ids(static_cast<uint32_t>(id));
  return info;
}

int Fail(const absl::Status& status) {
  LogError("cannot start", {{"error", std::string(status.message())}});
  return 1;
}

}  // namespace

int RunModelService(const ModelServiceSpec& spec, int argc, char** argv) {
  Flags flags;
  flags.server.listen = spec.listen;
  flags.metrics_listen = spec.metrics_listen;
  CLI::App app(spec.description, absl::StrCat("outrider-", spec.name));
  UseOneLineErrors(app);
  DefineFlags(app, flags);
  if (spec.define_flags) spec.define_flags(app);
  CLI11_PARSE(app, argc, argv);
  flags.worker.sequences.lease = absl::Seconds(flags.lease_seconds);
  flags.runner.max_batch_rows = flags.worker.max_batch_rows;
  flags.runner.max_sequences = flags.worker.sequences.max_sequences;
  if (absl::Status status = InitLog(spec.name, flags.log_level, flags.log_format); !status.ok()) {
    std::cerr << status.message() << "\n";
    return 1;
  }

  // Before any thread exists, so that all of them leave these signals to sigwait below.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  // First of all whether it is a model that can be run, which costs nothing to know.
  if (const auto config = ReadModelConfig(flags.runner.model_dir); !config.ok()) return Fail(config.status());
  auto tokenizer = Tokenizer::Load(absl::StrCat(flags.runner.model_dir, "/tokenizer.json"));
  if (!tokenizer.ok()) return Fail(tokenizer.status());
  absl::StatusOr<std::unique_ptr<Runner>> runner = Runner::Load(flags.runner);
  if (!runner.ok()) return Fail(runner.status());
  const v1::ServerInfo info = Describe(**runner, flags, (*tokenizer)->Fingerprint());
  tokenizer->reset();

  auto registry = std::make_shared<prometheus::Registry>();
  WorkerMetrics metrics(*registry, spec.name);
  AddBuildInfo(*registry, info.version());
  AddGauge(*registry, absl::StrCat(spec.name, "_model_info"), "1; which model is served, and how.",
           {{"model", info.model()}, {"dtype", info.dtype()}, {"device", info.device()}})
      ->Set(1);
  Worker worker(*std::move(runner), spec.make_sampler(), flags.worker, metrics.Hooks());
  flags.server.security.on_refused = LogRefusedTokens;
  const std::unique_ptr<StreamService> service = spec.make_service(worker, info);
  absl::StatusOr<std::unique_ptr<RpcServer>> server = RpcServer::Start(flags.server, service->service());
  if (!server.ok()) return Fail(server.status());
  std::unique_ptr<MetricsServer> metrics_server;
  if (!flags.metrics_listen.empty()) {
    auto started = MetricsServer::Start(flags.metrics_listen, registry);
    if (!started.ok()) return Fail(started.status());
    metrics_server = *std::move(started);
  }
  (*server)->SetServing(true);
  LogInfo("serving", {{"listen", (*server)->address()},
                      {"metrics_listen", metrics_server ? metrics_server->address() : ""},
                      {"model", info.model()},
                      {"dtype", info.dtype()},
                      {"device", info.device()},
                      {"kernel", worker.runner().kernel_name()},
                      {"kv_blocks", static_cast<int64_t>(info.kv_blocks())},
                      {"fingerprint", absl::StrCat(absl::Hex(info.fingerprint(), absl::kZeroPad16))}});

  int signal = 0;
  sigwait(&signals, &signal);
  LogInfo("draining", {{"signal", std::string(strsignal(signal))}, {"drain_seconds", flags.drain_seconds}});
  (*server)->SetServing(false);
  // Rounds that are running end well; then the streams are closed, and their coordinators look elsewhere.
  worker.AwaitIdle(absl::Now() + absl::Seconds(flags.drain_seconds));
  service->EndStreams();
  (*server)->Shutdown(absl::Seconds(1));
  LogInfo("stopped");
  // What matters has ended. Taking the rest apart in order would take two seconds, until the metrics server's
  // threads look up.
  std::quick_exit(0);
}

}  // namespace outrider
