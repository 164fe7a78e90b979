// The engine thread: takes items from a mailbox and runs everything that has arrived through the model in
// shared forward passes. Draft and target differ only in their Sampler.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/engine/device_task.h"
#include "common/engine/mailbox.h"
#include "common/engine/runner.h"
#include "common/engine/sampler.h"
#include "common/engine/sequence/sequence_store.h"
#include "common/engine/work_item.h"
#include "common/kv/sequence_id.h"

namespace outrider {

struct WorkerOptions {
  int max_batch_rows = 512;
  SequenceStoreOptions sequences = {};
  bool check_invariants = false;  // after every step; for tests
};

// What happened in a forward pass, for metrics.
struct StepStats {
  int sequences = 0;
  int rows = 0;
  absl::Duration duration;
};

// Thread-safe.
class Worker {
 public:
  // Called from the engine thread after each step, and after anything that changed the state while idle.
  struct Hooks {
    std::function<void(const StepStats&)> on_step;
    std::function<void(const SequenceStoreCounts&)> on_state;
    // The model cannot compute any more: the device failed.
    std::function<void(const absl::Status&)> on_failure = nullptr;
  };

  Worker(std::unique_ptr<Runner> runner, std::unique_ptr<Sampler> sampler, const WorkerOptions& options,
         Hooks hooks);
  // Ends the thread; items in progress are answered UNAVAILABLE.
  ~Worker();

  // Each item is answered exactly once unless it is cancelled or its sequence released.
  void Submit(WorkItem item);
  // Frees the sequence; its id is not known again.
  void Release(const SequenceId& id) { mailbox_.Put(ReleaseCommand{id}); }
  // Drops the item of that round, if it is in progress. The sequence stays.
  void Cancel(const SequenceId& id, uint64_t round) { mailbox_.Put(CancelCommand{id, round}); }

  // Until nothing is in progress or waits, or the deadline has come.
  void AwaitIdle(absl::Time deadline) { mailbox_.AwaitIdle(deadline); }

  const Runner& runner() const { return *runner_; }

 private:
  // A sequence's part in a step.
  struct ScheduledSequence {
    SequenceState* sequence;
    int rows;
    int logit_rows;  // the last ones of `rows`
    std::optional<DeviceTask> task;
  };
  // A sequence whose tokens are all fed.
  struct Decision {
    SequenceState* sequence;
    LogitsView rows;
    absl::StatusOr<bool> done = true;  // what the sampler says
  };

  // Engine thread.
  void Run();
  void Handle(WorkItem item);
  void Handle(const ReleaseCommand& command) { store_.Release(command.id); }
  void Handle(const CancelCommand& command) { store_.Cancel(command.id, command.round); }
  void EndExpired();
  void Step();
  std::vector<ScheduledSequence> Schedule();
  absl::StatusOr<LogitsView> RunModel(std::vector<ScheduledSequence>& scheduled);
  void Postprocess(std::vector<ScheduledSequence>& scheduled, const LogitsView& logits);
  void SampleAll(std::vector<Decision>& decisions);
  void ReportState();

  const std::unique_ptr<Runner> runner_;
  const std::unique_ptr<Sampler> sampler_;
  const WorkerOptions options_;
  const Hooks hooks_;

  Mailbox mailbox_;
  SequenceStore store_;  // engine thread
  std::thread thread_;
};

}  // namespace outrider
