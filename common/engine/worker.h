// The engine thread: takes items from a mailbox and runs all pending sequences through the model in shared
// forward passes (continuous batching). Draft and target differ only in their Sampler.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/engine/batch.h"
#include "common/engine/mailbox.h"
#include "common/engine/prompt_pace.h"
#include "common/engine/runner.h"
#include "common/engine/sequence/sequence_state.h"
#include "common/engine/sequence/sequence_store.h"
#include "common/engine/step_gather.h"
#include "common/engine/work_item.h"
#include "common/kv/lease_table.h"
#include "common/spec/step_time.h"

namespace outrider {

struct WorkerOptions {
  int max_batch_rows = 512;
  SequenceStoreOptions sequences = {};
  bool check_invariants = false;  // after every step; for tests
};

// Statistics of a forward pass, for metrics.
struct StepStats {
  int sequences = 0;
  int rows = 0;
  absl::Duration duration;
};

// Thread-safe.
class Worker {
 public:
  // Called from the engine thread, except on_items, which any thread may call. on_step follows each forward
  // pass; on_state and on_graphs precede each forward pass and follow each iteration of the loop. The
  // constructor also calls these two once.
  struct Hooks {
    std::function<void(const StepStats&)> on_step;
    std::function<void(const SequenceStoreCounts&)> on_state;
    // The change in the number of items that wait or are in progress: 1 when one arrives, negative when some
    // end.
    std::function<void(int)> on_items = nullptr;
    // The device failed; the model cannot be used any more.
    std::function<void(const absl::Status&)> on_failure = nullptr;
    std::function<void(const GraphCaptures&)> on_graphs = nullptr;
  };

  // The engine thread polls `source`, if there is one, whenever it is idle, and now and then between steps.
  Worker(std::unique_ptr<Runner> runner, std::unique_ptr<Sampler> sampler, const WorkerOptions& options,
         Hooks hooks, CommandSource source = {});
  // Stops the thread. Items in progress are answered UNAVAILABLE.
  ~Worker();

  // Submits an item. It is answered exactly once unless it is cancelled or its sequence is released. While
  // four items per allowed sequence wait for the engine, it is refused at once, on this thread, with
  // RESOURCE_EXHAUSTED, reason SERVER_BUSY.
  //
  // After Drain, the first item of each sequence is refused with UNAVAILABLE, reason DRAINING. Later items
  // get no answer but the end of their stream, so that a sender that retries at once does not spin.
  void Submit(WorkItem item);
  // The next three call the SequenceStore's functions of that name, after the items submitted before them.
  void Release(const SequenceId& id) {
    mailbox_.Put([this, id](SequenceStore& store) {
      store.Release(id);
      gather_.OnRelease(id);
    });
  }
  void Cancel(const SequenceId& id, uint64_t round) {
    mailbox_.Put([id, round](SequenceStore& store) { store.Cancel(id, round); });
  }
  void Promote(const SequenceId& id, absl::Time deadline) {
    mailbox_.Put([id, deadline](SequenceStore& store) { store.Promote(id, deadline); });
  }

  // Takes no more items. Items submitted earlier are answered as usual.
  void Drain() { mailbox_.Close(); }
  // Blocks until no item is queued or in progress, or until `deadline`.
  void AwaitIdle(absl::Time deadline) { mailbox_.AwaitIdle(deadline); }

  // How far the engine thread has come. `iterations` grows with each step, and a step is bounded by
  // max_batch_rows; as long as it does not grow while `busy`, the engine hangs. Thread-safe.
  struct Progress {
    bool busy = false;  // items wait or are in progress
    uint64_t iterations = 0;
  };
  Progress progress() const { return {mailbox_.busy(), iterations_.load(std::memory_order_relaxed)}; }

  // Items that wait or are in progress. Thread-safe.
  int items() const { return counted_items_.load(std::memory_order_relaxed); }
  // The share of the KV cache's blocks that sequences use, after the last step. Thread-safe.
  float kv_used() const { return kv_used_.load(std::memory_order_relaxed); }

  const Runner& runner() const { return *runner_; }

 private:
  // A sequence's share of a step.
  struct ScheduledSequence {
    SequenceState* sequence;
    int rows;
    int logit_rows;  // how many of the last rows need logits
    std::optional<DeviceTask> task;
    int hidden_rows = 0;  // how many of the last rows need hidden states, for its proposer
  };
  // A sequence whose tokens are all computed, ready for the sampler.
  struct Decision {
    SequenceState* sequence;
    LogitsView rows;
    HiddenView hidden;                 // of the same rows, if a proposer wants them
    absl::StatusOr<bool> done = true;  // the sampler's result
  };

  // Everything below runs on the engine thread.
  void Run();
  void CountItems(int more) {
    counted_items_.fetch_add(more, std::memory_order_relaxed);
    if (hooks_.on_items) hooks_.on_items(more);
  }
  void EndExpired();
  // Makes a step, if there is work and other sequences are not worth waiting for. Returns how long to wait
  // for commands.
  absl::Time StepOrWait();
  void Step();
  std::vector<ScheduledSequence> Schedule();
  absl::StatusOr<LogitsView> RunModel(std::vector<ScheduledSequence>& scheduled);
  // Gives hidden states to the proposers that want them.
  void GiveHidden(std::span<const ScheduledSequence> scheduled, const HiddenView& hidden);
  void Postprocess(std::vector<ScheduledSequence>& scheduled, const LogitsView& logits);
  void SampleAll(std::vector<Decision>& decisions);
  // Calls on_failure for an error after which the model cannot be used. An invalid batch is a bug in this
  // program, and memory may run out for one batch; both affect only the items of the batch.
  void ReportIfLost(const absl::Status& status) {
    const bool lost = !absl::IsInvalidArgument(status) && !absl::IsResourceExhausted(status);
    if (lost && hooks_.on_failure) hooks_.on_failure(status);
  }
  void ReportState();

  const std::unique_ptr<Runner> runner_;
  const std::unique_ptr<Sampler> sampler_;
  const WorkerOptions options_;
  const Hooks hooks_;

  const CommandSource source_;
  Mailbox mailbox_;
  std::atomic<uint64_t> iterations_ = 0;
  SequenceStore store_;  // engine thread only
  StepTime step_time_;
  PromptPace prompt_pace_;
  StepGather gather_;
  std::atomic<int> counted_items_ = 0;
  std::atomic<float> kv_used_ = 0;
  int items_ = 0;  // taken from the mailbox and included in counted_items_; engine thread only
  std::thread thread_;
};

}  // namespace outrider
