#include "common/serve/served_model.h"

#include <algorithm>
#include <cmath>
#include <exception>

#include "absl/strings/str_cat.h"
#include "common/engine/decoder/model_config.h"
#include "common/gguf/model_path.h"
#include "common/grammar/vocabulary.h"
#include "common/obs/log.h"
#include "common/obs/metric_families.h"
#include "common/obs/version.h"
#include "common/rpc/drafters.h"
#include "common/rpc/fresh_bits.h"
#include "common/rpc/server.h"
#include "common/spec/status.h"
#include "common/text/tokenizer.h"

namespace outrider {
namespace {

constexpr absl::Duration kLoadingLine = absl::Seconds(2);  // between log lines while a model is loading

v1::ServerInfo Describe(const Runner& runner, const ServedModelOptions& options,
                        uint64_t tokenizer_fingerprint) {
  const ModelConfig& config = runner.config();
  v1::ServerInfo info;
  info.set_boot_id(FreshBits());
  info.set_fingerprint(
      ModelFingerprint(tokenizer_fingerprint, config.decoder.vocab_size, config.eos_token_ids));
  info.set_model(ModelName(options.runner.model_dir));
  info.set_vocab_size(static_cast<uint32_t>(config.decoder.vocab_size));
  info.set_max_context(static_cast<uint32_t>(config.decoder.max_position_embeddings));
  info.set_max_draft_tokens(static_cast<uint32_t>(options.max_draft_tokens));
  // A tree's nodes and the token before them must fit the rows of one step, and a proposal whose nodes have a
  // dense q must fit one message.
  const int64_t row_bytes = int64_t{sizeof(float)} * config.decoder.vocab_size;
  info.set_max_tree_nodes(static_cast<uint32_t>(std::min<int64_t>(
      {options.max_tree_nodes, options.worker.max_batch_rows - 1, kMaxMessageBytes / row_bytes})));
  info.set_max_message_bytes(kMaxMessageBytes);
  info.set_engine(options.runner.engine);
  info.set_row_invariant(runner.row_invariant());
  info.set_tree_row_invariant(runner.tree_row_invariant());
  info.set_device(options.runner.device);
  info.set_dtype(runner.dtype());
  info.set_numerics(runner.numerics());
  info.set_kv_blocks(static_cast<uint32_t>(runner.kv_blocks()));
  info.set_block_size(static_cast<uint32_t>(runner.block_size()));
  info.set_weight_bytes(runner.weight_bytes());
  info.set_weights_hash(runner.weights_hash());
  info.set_version(kVersion);
  for (const std::unique_ptr<Proposer>& proposer : runner.proposers()) {
    v1::ProposerInfo& proposes = *info.add_proposers();
    proposes.set_proposer(ProposerOf(proposer->kind()));
    proposes.set_max_draft_tokens(
        static_cast<uint32_t>(std::min(proposer->max_tokens(), options.max_draft_tokens)));
    proposes.set_greedy(proposer->kind() == ProposerKind::kBlockwise);
  }
  for (TokenId id : config.eos_token_ids) info.add_eos_ids(static_cast<uint32_t>(id));
  return info;
}

void Raise(prometheus::Counter* counter, int64_t to) {
  counter->Increment(static_cast<double>(to) - counter->Value());
}

}  // namespace

Worker::Hooks MetricHooks(prometheus::Registry& registry, const std::string& name) {
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
  auto* const sequences = gauge("sequences", "Sequences that the server holds.");
  auto* const items = gauge("items_in_progress", "Items that are being worked on or wait for the engine.");
  auto* const blocks_used = gauge("kv_blocks_used", "Blocks of the KV cache in use.");
  auto* const blocks_cached = gauge(
      "kv_blocks_cached", "Blocks of the KV cache that no sequence uses, kept for prompts that begin alike.");
  auto* const blocks_free = gauge("kv_blocks_free", "Blocks of the KV cache that are free.");
  auto* const prefix_queried =
      counter("prefix_cache_queries_total", "Tokens that were looked for in the prefix cache.");
  auto* const prefix_hit = counter("prefix_cache_hits_total", "Of them, those found and not computed again.");
  auto* const preemptions =
      counter("preemptions_total", "Sequences that lost their cache because blocks ran out.");
  auto* const step_seconds =
      histogram("step_duration_seconds", "Duration of a forward pass, in seconds.",
                {1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1, 2e-1, 5e-1, 1, 2, 5});
  auto* const batch_sequences =
      histogram("batch_sequences", "Sequences in a forward pass.", {1, 2, 4, 8, 16, 32, 64, 128});
  auto* const batch_rows = histogram("batch_rows", "Rows (tokens) in a forward pass.",
                                     {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024});
  auto* const graph_captures =
      counter("graph_captures_total", "Steps captured as CUDA graphs, one for each shape.");
  auto* const graph_captures_ended = gauge(
      "graph_captures_ended", "1 once a capture failed, after which no step is captured any more, else 0.");
  return {[=](const StepStats& stats) {
            step_seconds->Observe(absl::ToDoubleSeconds(stats.duration));
            batch_sequences->Observe(stats.sequences);
            batch_rows->Observe(stats.rows);
          },
          [=](const SequenceStoreCounts& counts) {
            sequences->Set(counts.sequences);
            blocks_used->Set(counts.blocks_used);
            blocks_cached->Set(counts.blocks_cached);
            blocks_free->Set(counts.blocks_free);
            Raise(prefix_queried, counts.prefix_queried);
            Raise(prefix_hit, counts.prefix_hit);
            Raise(preemptions, counts.preemptions);
          },
          [=](int more) { items->Increment(more); },
          /*on_failure=*/nullptr,
          [=](const GraphCaptures& captures) {
            Raise(graph_captures, captures.count);
            if (captures.failure.ok() || graph_captures_ended->Value() == 1) return;
            graph_captures_ended->Set(1);
            LogWarning(
                "steps are no longer captured",
                {{"serves", name}, {"captured", captures.count}, {"error", captures.failure.message()}});
          }};
}

double KvBudget::PoolBytes(double free_bytes, size_t block_bytes) {
  absl::MutexLock lock(&mutex_);
  ++asked_;
  free_bytes_ = std::min(free_bytes_, free_bytes);
  block_bytes_ += static_cast<double>(block_bytes);
  const auto all_have_asked = [](KvBudget* budget) ABSL_EXCLUSIVE_LOCKS_REQUIRED(budget->mutex_) {
    return budget->asked_ == budget->models_;
  };
  mutex_.Await(absl::Condition(+all_have_asked, this));
  return std::floor(fraction_ * free_bytes_ / block_bytes_) * static_cast<double>(block_bytes);
}

std::function<bool()> EngineIsStuck(const Worker& worker) {
  return [&worker, last = uint64_t{0}]() mutable {
    const Worker::Progress progress = worker.progress();
    return progress.busy && std::exchange(last, progress.iterations) == progress.iterations;
  };
}

absl::Status ServedModel::Check() {
  OUTRIDER_TRY(ReadModelConfig(options_.runner.model_dir));
  tokenizer_ = OUTRIDER_TRY(Tokenizer::Load(FileOf(options_.runner.model_dir, "tokenizer.json")));
  return absl::OkStatus();
}

void ServedModel::Load(KvBudget* budget) {
  if (budget != nullptr) {
    options_.runner.pool_bytes = [budget](double free_bytes, size_t block_bytes) {
      return budget->PoolBytes(free_bytes, block_bytes);
    };
  }
  absl::Status status;
  try {
    status = TryToLoad();
  } catch (const std::exception& exception) {  // out of threads or memory
    status = absl::ResourceExhaustedError(exception.what());
  }
  if (status.ok()) return;
  const std::string who = options_.who.empty() ? "" : absl::StrCat(options_.who, ": ");
  EndProcess(absl::Status(status.code(), absl::StrCat(who, status.message())), kCannotStart);
}

absl::Status ServedModel::TryToLoad() {
  ParallelOptions& parallel = options_.runner.parallel;
  parallel.on_lost = [this](const absl::Status& why) { EndProcess(drains_ ? absl::OkStatus() : why); };
  parallel.on_wait = [&parallel] {
    LogInfo("waiting for the other ranks",
            {{"rank", parallel.rank}, {"ranks", parallel.size}, {"rendezvous", parallel.rendezvous}});
  };
  options_.runner.progress = [this, next = absl::Now() + kLoadingLine](double loaded) mutable {
    if (absl::Now() < next || loaded == 1) return;
    next = absl::Now() + kLoadingLine;
    LogInfo("loading",
            {{"model", ModelName(options_.runner.model_dir)}, {"percent", std::lround(100 * loaded)}});
  };
  runner_ = OUTRIDER_TRY(Runner::Load(options_.runner));
  if (parallel.rank > 0) return absl::OkStatus();  // only rank 0 describes the model
  info_ = Describe(*runner_, options_, tokenizer_->Fingerprint());
  if (spec_.complete_info) spec_.complete_info(info_);
  sampler_ = OUTRIDER_TRY(spec_.make_sampler(info_, runner_->config()));
  return absl::OkStatus();
}

void ServedModel::Follow() {
  const ParallelOptions& parallel = options_.runner.parallel;
  LogInfo("following rank 0", {{"rank", parallel.rank}, {"rendezvous", parallel.rendezvous}});
  absl::Status end;
  RunUnderSignals([&] { end = runner_->Follow(); },
                  [&] {
                    if (drains_.exchange(true)) EndProcess(absl::OkStatus());
                    LogInfo("draining", {{"until", "rank 0 ends, or another signal"}});
                  });
  // While draining, the loss of rank 0 is expected; a failure of this rank is not.
  EndProcess(drains_ && absl::IsUnavailable(end) ? absl::OkStatus() : end);
}

Endpoint ServedModel::Start() {
  const ModelConfig& config = runner_->config();
  const std::string& packed = info_.dtype() == kPackedDtype ? config.no_blocks : config.packed;
  if (!packed.empty()) {
    LogInfo("quantised weights unpacked",
            {{"model", info_.model()}, {"from", packed}, {"to", info_.dtype()}});
  }
  const int frequent = options_.runner.frequent_tokens;
  if (frequent > 0 && frequent < runner_->config().decoder.vocab_size) {
    LogInfo("proposing frequent tokens only", {{"model", info_.model()}, {"tokens", frequent}});
  }
  if (const std::string algorithms = runner_->algorithms(); !algorithms.empty()) {
    LogInfo("matrix products", {{"model", info_.model()}, {"algorithms", algorithms}});
  }
  AddGauge(*registry_, absl::StrCat(spec_.name, "_model_info"), "1; which model is served, and how.",
           {{"model", info_.model()}, {"dtype", info_.dtype()}, {"device", info_.device()}})
      ->Set(1);
  Worker::Hooks hooks = MetricHooks(*registry_, spec_.name);
  // A GPU that failed does not recover within this process, so the process ends for a supervisor to restart.
  hooks.on_failure = [](const absl::Status& why) { EndProcess(why); };
  // The engine thread polls for its items itself.
  poller_.emplace(options_.busy_poll);
  CommandSource source{.poll = [this](absl::Time deadline) { poller_->Poll(deadline); },
                       .wake = [this] { poller_->Wake(); },
                       .hold_answers = [this] { service_->HoldAnswers(); },
                       .release_answers = [this] { service_->ReleaseAnswers(); }};
  worker_.emplace(std::move(runner_), std::move(sampler_), options_.worker, std::move(hooks),
                  std::move(source));
  grammars_.emplace([this] {
    const ModelConfig& config = worker_->runner().config();
    return VocabularyOf(*tokenizer_, config.decoder.vocab_size, config.eos_token_ids);
  });
  service_ = spec_.make_service(*worker_, info_, &*grammars_, options_.tracer);
  return {.flag = options_.listen_flag,
          .listen = options_.listen,
          .services = {service_->service()},
          .registry = registry_,
          .poller = &*poller_};
}

void ServedModel::Serve(ServerProcess& process, size_t endpoint) {
  service_->Serve(process.rpc(endpoint));
  process.SetModelName(info_.model(), endpoint);
  auto* const stalled =
      AddGauge(*registry_, absl::StrCat(spec_.name, "_engine_stalled"), "1 while the engine hangs, else 0.");
  watch_.emplace(absl::StrCat(spec_.name, " engine"), options_.stall_timeout, EngineIsStuck(*worker_),
                 [stalled, &process](bool hangs) {
                   stalled->Set(hangs ? 1 : 0);
                   process.ReportStall(hangs);
                 });
}

void ServedModel::LogServing(ServerProcess& process, size_t endpoint) const {
  LogInfo("serving", {{"serves", spec_.name},
                      {"listen", process.rpc(endpoint).address()},
                      {"metrics_listen", process.metrics_address()},
                      {"model", info_.model()},
                      {"dtype", info_.dtype()},
                      {"engine", info_.engine()},
                      {"device", info_.device()},
                      {"kernel", worker_->runner().kernel_name()},
                      {"kv_blocks", static_cast<int64_t>(info_.kv_blocks())},
                      {"fingerprint", absl::StrCat(absl::Hex(info_.fingerprint(), absl::kZeroPad16))}});
}

}  // namespace outrider
