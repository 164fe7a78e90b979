#include "common/serve/model_service.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/engine/backend.h"
#include "common/gguf/model_path.h"
#include "common/obs/version.h"
#include "common/serve/served_model.h"
#include "common/serve/server_process.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

// The flags of one service.
struct ServiceFlags {
  std::string prefix = "--";  // of its flags
  std::string listen;
  RunnerOptions runner;  // only model, dtype, algorithms, frequent tokens and heads are used
};

struct Flags {
  ProcessFlags process;
  std::vector<ServiceFlags> services;
  RunnerOptions runner;  // for all services, like the members below
  WorkerOptions worker;
  double lease_seconds = 60;
  int max_draft_tokens = 16;
  int max_tree_nodes = 64;
  double stall_seconds = 60;
  bool self_test = false;

  bool has_several() const { return services.size() > 1; }
};

void DefineFlags(CLI::App& app, Flags& flags) {
  app.option_defaults()->always_capture_default();
  for (ServiceFlags& service : flags.services) {
    app.option_defaults()->group("Model");
    app.add_option(service.prefix + "model", service.runner.model_dir, kModelNames)->required();
    DefineAddressFlag(app, service.prefix + "listen", service.listen);
  }
  DefineListenFlags(app, flags.process);
  app.option_defaults()->group("Engine");
  app.add_option("--engine", flags.runner.engine,
                 "native: kernels of this project; torch: libtorch, exact up to rounding");
  app.add_option("--device", flags.runner.device, "cpu or cuda:N");
  for (ServiceFlags& service : flags.services) {
    app.add_option(
        service.prefix + "dtype", service.runner.dtype,
        "auto, float32, bfloat16 or int8 (weights) on the CPU; auto, bfloat16 or fp8 on a GPU; auto, "
        "float32 or bfloat16 with --engine torch");
  }
  for (ServiceFlags& service : flags.services) {
    app.add_option(service.prefix + "matmul-algorithms", service.runner.matmul_algorithms,
                   "on a GPU: file with cuBLAS's algorithms, written if it is not there; a later start uses "
                   "the same ones, or ends if it cannot")
        ->type_name("FILE");
  }
  // Each rank of a shared model is a process of its own.
  if (ParallelOptions& parallel = flags.runner.parallel; !flags.has_several()) {
    app.add_option("--tensor-parallel", parallel.size,
                   "processes that share the model, with --engine torch; each is started with its --rank");
    app.add_option("--rank", parallel.rank,
                   "which of these processes this is, from 0; only rank 0 listens at any address");
    app.add_option("--rendezvous", parallel.rendezvous,
                   "HOST:PORT where rank 0 waits for the other ranks, without authentication or encryption");
  }
  app.add_option("--threads", flags.runner.threads,
                 flags.has_several() ? "threads that compute, for each model; 0: one per CPU"
                                     : "threads that compute; 0: one per CPU")
      ->check(CLI::Range(0, 1024));
  app.option_defaults()->group("Memory and batches");
  app.add_option("--kv-blocks", flags.runner.kv_blocks,
                 flags.has_several() ? "blocks of each KV cache; auto: what fits the memory"
                                     : "blocks of the KV cache; auto: what fits the memory")
      ->transform(CLI::CheckedTransformer(std::map<std::string, int>{{"auto", 0}}) | CLI::Range(1, 1 << 24))
      ->default_str("auto");
  app.add_option("--kv-memory-fraction", flags.runner.kv_memory_fraction,
                 flags.has_several() ? "of the memory (of the device) that is free beside all models, for "
                                       "their KV caches together; for --kv-blocks auto"
                                     : "of the free memory (of the device), for --kv-blocks auto; draft and "
                                       "target may share it")
      ->check(CLI::Range(0.001, 1.0));
  app.add_option("--block-size", flags.runner.block_size, "tokens a block")->check(CLI::Range(1, 1024));
  app.add_option("--max-batch-tokens", flags.worker.max_batch_rows, "most rows of a forward pass")
      ->check(CLI::Range(32, 1 << 16));
  app.add_flag("--prefix-cache,!--no-prefix-cache", flags.worker.sequences.prefix_cache,
               "keep blocks for prompts that begin alike; on")
      ->default_str("true");
  app.add_option("--max-sequences", flags.worker.sequences.max_sequences, "most sequences that are kept")
      ->check(CLI::Range(1, 1 << 20));
  app.option_defaults()->group("Limits");
  app.add_option("--max-draft-tokens", flags.max_draft_tokens, "largest K")
      ->check(CLI::Range(1, kMaxDraftTokens));
  app.add_option("--max-tree-nodes", flags.max_tree_nodes,
                 "most drafted tokens of a tree, in which several compete for a position; 0: only chains")
      ->check(CLI::Range(0, 1024));
  app.add_option("--lease", flags.lease_seconds, "seconds until an untouched sequence is freed")
      ->check(CLI::Range(0.1, 1e6));
  app.add_option("--stall-timeout", flags.stall_seconds,
                 "seconds without a finished step, while items wait, after which health says that the engine "
                 "hangs; more than the longest step takes; 0: never")
      ->check(CLI::Range(0.0, 1e6));
  app.add_flag("--self-test", flags.self_test,
               "tests engine, device and dtype on a small made-up model with the heads of this one, prints a "
               "line a check, and ends: with 0 if all passed");
  DefineDrainAndLogFlags(app, "seconds that running work has after SIGTERM", flags.process);
}

using Models = std::vector<std::unique_ptr<ServedModel>>;

RunnerOptions RunnerFor(const ModelServiceSpec& spec, const ServiceFlags& service, const Flags& flags) {
  RunnerOptions options = flags.runner;
  options.model_dir = service.runner.model_dir;
  options.dtype = service.runner.dtype;
  options.matmul_algorithms = service.runner.matmul_algorithms;
  options.frequent_tokens = service.runner.frequent_tokens;
  options.heads = service.runner.heads;
  options.role = spec.role;
  options.max_batch_rows = flags.worker.max_batch_rows;
  options.max_sequences = flags.worker.sequences.max_sequences;
  return options;
}

Models MakeModels(const ModelProgramSpec& program, const Flags& flags, Tracer* tracer) {
  Models models;
  for (size_t i = 0; i < program.services.size(); ++i) {
    const ServiceFlags& service = flags.services[i];
    ServedModelOptions options{.who = flags.has_several() ? program.services[i].name : "",
                               .listen_flag = service.prefix + "listen",
                               .listen = service.listen,
                               .runner = RunnerFor(program.services[i], service, flags),
                               .worker = flags.worker,
                               .max_draft_tokens = flags.max_draft_tokens,
                               .max_tree_nodes = flags.max_tree_nodes,
                               .stall_timeout = absl::Seconds(flags.stall_seconds),
                               .busy_poll = absl::Seconds(flags.process.busy_poll_seconds),
                               .tracer = tracer};
    options.worker.sequences.lease = absl::Seconds(flags.lease_seconds);
    models.push_back(std::make_unique<ServedModel>(program.services[i], std::move(options)));
  }
  return models;
}

// Checks what can be known before the models are loaded, which takes long.
absl::Status Check(const Models& models, const Flags& flags) {
  for (const std::unique_ptr<ServedModel>& model : models) OUTRIDER_TRY(model->Check());
  const ServiceFlags& first = flags.services.front();
  for (size_t i = 1; i < models.size(); ++i) {
    const ServiceFlags& other = flags.services[i];
    if (other.listen == first.listen && !absl::EndsWith(other.listen, ":0")) {
      return Invalid(other.prefix, "listen ", other.listen, ": ", first.prefix, "listen is the same");
    }
    const std::string& algorithms = other.runner.matmul_algorithms;
    if (!algorithms.empty() && algorithms == first.runner.matmul_algorithms) {
      return Invalid(other.prefix, "matmul-algorithms ", algorithms, ": ", first.prefix,
                     "matmul-algorithms is the same");
    }
    if (!models[i]->HasSameTokenizer(*models.front())) {
      return Invalid(other.prefix, "model ", other.runner.model_dir, ": has another tokenizer than ",
                     first.prefix, "model ", first.runner.model_dir);
    }
  }
  return absl::OkStatus();
}

// Loads all models at the same time.
void Load(const Models& models, const Flags& flags) {
  std::optional<KvBudget> budget;
  if (flags.has_several()) budget.emplace(static_cast<int>(models.size()), flags.runner.kv_memory_fraction);
  KvBudget* const shared = budget ? &*budget : nullptr;
  RunUnderSignals(
      [&] {
        std::vector<std::thread> threads;
        for (size_t i = 1; i < models.size(); ++i) {
          threads.emplace_back([&models, shared, i] { models[i]->Load(shared); });
        }
        models.front()->Load(shared);
        for (std::thread& thread : threads) thread.join();
      },
      [] { EndProcess(absl::OkStatus()); });
}

// For --self-test. Returns only if nothing can be tested, with the reason.
absl::Status SelfTest(const ModelProgramSpec& program, const Flags& flags) {
  absl::StatusOr<bool> passed = true;
  const auto test = [&](size_t i) {
    const std::string who = flags.has_several() ? absl::StrCat(program.services[i].name, ": ") : "";
    return Runner::Test(RunnerFor(program.services[i], flags.services[i], flags),
                        [&](absl::string_view line) { std::cout << who << line << std::endl; });
  };
  RunUnderSignals(
      [&] {
        for (size_t i = 0; i < program.services.size() && passed.ok() && *passed; ++i) passed = test(i);
      },
      [] { std::quick_exit(1); });
  OUTRIDER_TRY(passed.status());
  std::quick_exit(*passed ? 0 : 1);
}

// Returns only if the process cannot start, with the reason.
absl::Status Serve(const ModelProgramSpec& program, const Flags& flags) {
  const std::unique_ptr<Tracer> tracer = Tracer::FromEnvironment(absl::StrCat("outrider-", program.name));
  const Models models = MakeModels(program, flags, tracer.get());
  OUTRIDER_TRY(Check(models, flags));
  Load(models, flags);
  if (flags.runner.parallel.rank > 0) models.front()->Follow();
  std::vector<Endpoint> endpoints;
  for (const std::unique_ptr<ServedModel>& model : models) endpoints.push_back(model->Start());
  const auto started = OUTRIDER_TRY(ServerProcess::Start(flags.process, endpoints));
  ServerProcess& process = *started;
  for (size_t i = 0; i < models.size(); ++i) models[i]->Serve(process, i);
  process.SetServing(true);
  for (size_t i = 0; i < models.size(); ++i) models[i]->LogServing(process, i);
  process.AwaitEnd([&] {
    for (const std::unique_ptr<ServedModel>& model : models) model->RefuseNew();
  });
  const absl::Time deadline = absl::Now() + absl::Seconds(flags.process.drain_seconds);
  for (const std::unique_ptr<ServedModel>& model : models) model->Finish(deadline);
  if (tracer != nullptr) tracer->Flush();
  process.Exit(absl::Seconds(1));
}

}  // namespace

int RunModelProgram(const ModelProgramSpec& program, int argc, char** argv) {
  Flags flags;
  flags.process.metrics_listen = program.metrics_listen;
  for (const ModelServiceSpec& service : program.services) {
    ServiceFlags& its = flags.services.emplace_back();
    its.listen = service.listen;
    if (program.services.size() > 1) its.prefix = absl::StrCat("--", service.name, "-");
  }
  CLI::App app(program.description, absl::StrCat("outrider-", program.name));
  DefineFlags(app, flags);
  app.set_version_flag("--version", [&app] {
    return absl::StrCat(app.get_name(), " ", VersionAndCommit(), ", models run by: ", DescribeEngines());
  });
  for (size_t i = 0; i < program.services.size(); ++i) {
    if (program.services[i].define_flags) program.services[i].define_flags(app, flags.services[i].runner);
  }
  return RunProcess(app, argc, argv, program.name, flags.process, [&]() -> absl::Status {
    for (ServiceFlags& service : flags.services) {
      std::string& model = service.runner.model_dir;
      model = OUTRIDER_TRY(FindModel(model));
    }
    return flags.self_test ? SelfTest(program, flags) : Serve(program, flags);
  });
}

}  // namespace outrider
