// A model that a process serves: loading, the engine thread, its streams and its metrics.
#pragma once

#include <prometheus/registry.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/engine/runner.h"
#include "common/engine/worker.h"
#include "common/rpc/queue_poller.h"
#include "common/serve/model_service.h"
#include "common/serve/server_process.h"
#include "common/serve/stall_watch.h"
#include "common/spec/types.h"
#include "common/text/tokenizer.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// For a StallWatch: whether the engine has work and has done nothing since the last call. `worker` must
// outlive the result.
std::function<bool()> EngineIsStuck(const Worker& worker);

// Hooks that update the metrics outrider_<name>_... of `registry`, which must outlive them. All but
// on_failure are set. The log calls the model `name` too.
Worker::Hooks MetricHooks(prometheus::Registry& registry, const std::string& name);

// Divides memory among the KV pools of the models that one process loads at the same time.
//
// All pools together get a fraction of the memory that is free once every model has everything but its pool.
// Each gets the same number of blocks, since a sequence needs its keys and values in all of them.
// Thread-safe.
class KvBudget {
 public:
  // For `models` models, whose blocks hold the same number of tokens.
  KvBudget(int models, double fraction) : models_(models), fraction_(fraction) {}

  // For RunnerOptions::pool_bytes; each model calls it once. Blocks until all have asked, so the process must
  // end if a model cannot be loaded. The memory that counts is the least that any model found free.
  double PoolBytes(double free_bytes, size_t block_bytes) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const int models_;
  const double fraction_;
  absl::Mutex mutex_;
  int asked_ ABSL_GUARDED_BY(mutex_) = 0;
  double free_bytes_ ABSL_GUARDED_BY(mutex_) = std::numeric_limits<double>::infinity();
  double block_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of one block of each model
};

struct ServedModelOptions {
  std::string who;          // prefix of errors; empty if the process has no other model
  std::string listen_flag;  // Endpoint::flag
  std::string listen;
  RunnerOptions runner;
  WorkerOptions worker;
  int max_draft_tokens = 16;
  int max_tree_nodes = 64;
  absl::Duration stall_timeout;
  absl::Duration busy_poll;
  Tracer* tracer = nullptr;  // outlives the model; null for no traces
};

// Call the functions in the order of their declaration, on the main thread except for Load.
class ServedModel {
 public:
  // `spec` must outlive it.
  ServedModel(const ModelServiceSpec& spec, ServedModelOptions options)
      : spec_(spec), options_(std::move(options)) {}

  // Checks, at little cost, that the files describe a model that can be run.
  absl::Status Check();
  // Whether both models have the same tokenizer.
  bool HasSameTokenizer(const ServedModel& other) const {
    return tokenizer_->Fingerprint() == other.tokenizer_->Fingerprint();
  }
  // Loads the model, or ends the process. Any thread. `budget` divides the memory among models; null if there
  // is only one.
  void Load(KvBudget* budget);

  // For ranks other than 0: runs what rank 0 sends until rank 0 is gone, then ends the process. Rank 0 gets
  // the same signals and drains, and may still send work then, so only a second signal ends this process.
  [[noreturn]] void Follow();

  // Starts the engine.
  Endpoint Start();
  // Accepts streams at `endpoint` of `process`, which outlives this, and watches the engine.
  void Serve(ServerProcess& process, size_t endpoint);
  void LogServing(ServerProcess& process, size_t endpoint) const;

  // Refuses new streams and items.
  void RefuseNew() {
    service_->RefuseStreams();
    worker_->Drain();
  }
  // Lets running rounds finish until `deadline`, then closes the streams; coordinators then go elsewhere.
  void Finish(absl::Time deadline) {
    worker_->AwaitIdle(deadline);
    service_->EndStreams();
  }

 private:
  absl::Status TryToLoad();

  const ModelServiceSpec& spec_;
  ServedModelOptions options_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  std::atomic<bool> drains_ = false;  // for ranks other than 0: the end of rank 0 is no failure
  std::unique_ptr<Runner> runner_;    // until Start
  std::unique_ptr<Sampler> sampler_;  // likewise
  v1::ServerInfo info_;

  const std::shared_ptr<prometheus::Registry> registry_ = std::make_shared<prometheus::Registry>();
  std::optional<QueuePoller> poller_;
  std::unique_ptr<StreamService> service_;
  std::optional<Worker> worker_;  // destroyed before the above: its thread uses them
  std::optional<StallWatch> watch_;
  std::optional<GrammarCache> grammars_;  // destroyed first: its thread uses the members above
};

}  // namespace outrider
