// The engine thread: takes items from a mailbox, keeps the sequences they speak of, and runs everything that
// has arrived through the model in shared forward passes. Draft and target differ only in their Sampler.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/engine/device_task.h"
#include "common/engine/runner.h"
#include "common/engine/sequence_params.h"
#include "common/kv/block_pool.h"
#include "common/kv/cached_sequence.h"
#include "common/kv/lease_table.h"
#include "common/kv/prefix_index.h"
#include "common/kv/sequence_id.h"
#include "common/spec/controls.h"
#include "common/spec/logprobs.h"
#include "common/spec/random.h"
#include "common/spec/verify.h"

namespace outrider {

// Where the time of an item went.
struct WorkTiming {
  absl::Duration queue;    // from Submit until the first forward pass that it was part of
  absl::Duration compute;  // from there until the answer
  int batch_sequences = 0;
  int batch_rows = 0;  // of its last forward pass
};

// The answer to an item.
struct Answer {
  absl::Status status;
  int num_computed = 0;  // tokens of the sequence whose keys and values are in the cache
  int prefix_hit = 0;    // of the item's tokens, those that were found in the cache of other sequences
  WorkTiming timing;
  Proposal proposal;                                      // draft
  std::unique_ptr<Verdict> verdict;                       // target, unless append_only
  std::vector<PositionLogProbabilities> logprobs;         // target: of the emitted tokens
  std::vector<PositionLogProbabilities> prompt_logprobs;  // target: of the committed tokens from index 1 on
};

// An item of the protocol: see SequenceUpdate, ProposeItem and VerifyItem there.
struct WorkItem {
  SequenceId id;
  uint64_t round = 0;
  uint32_t base = 0;
  std::vector<TokenId> tokens;
  uint64_t prefix_hash = 0;
  uint64_t params_hash = 0;
  std::shared_ptr<const SequenceParams> params;  // null: those known under params_hash
  std::optional<SequenceId> fork_of;
  absl::Time deadline = absl::InfiniteFuture();
  Proposal draft;             // target: prepared
  int draft_tokens = 0;       // draft: K
  bool append_only = false;   // target
  int prompt_logprobs = -1;   // target: alternatives to report with each committed token; -1: none
  uint64_t content_hash = 0;  // of the draft and its distributions
  absl::Time received;        // set by Submit
  absl::Status invalid;       // why the item cannot be served, found before it got here
  std::function<void(const Answer&)> answer;  // called once, from the engine thread; must not block
};

// One sequence as a worker knows it.
struct SequenceState {
  SequenceState(const SequenceId& id, BlockPool* pool, int block_size) : id(id), cache(pool, block_size) {}

  SequenceId id;
  uint64_t number = 0;    // in order of arrival
  absl::Time idle_since;  // unless active
  CachedSequence cache;
  PrefixIndex::Cursor indexed;  // its blocks that others can find
  std::shared_ptr<const SequenceParams> params;
  uint64_t params_hash = 0;
  std::unique_ptr<Controls> controls;

  // The item in progress, or the last one that ended.
  bool active = false;
  bool begun = false;  // was part of a forward pass
  uint64_t round = 0;
  uint64_t digest = 0;  // 0: no item yet, or its answer was an error
  int committed = 0;    // n
  int logit_rows = 0;   // logits rows, the last ones of what waits to be fed
  WorkItem item;
  absl::Time arrived, started;
  std::vector<std::function<void(const Answer&)>> listeners;
  Answer answer;
};

// What a service does with logits. Called from the engine thread, but for Decide.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // The item's committed tokens are in sequence.cache.tokens(). Appends drafted tokens to it and sets
  // sequence.logit_rows.
  virtual absl::Status Begin(SequenceState& sequence) = 0;

  // Rows of a sequence whose item asks for prompt_logprobs: row i is what follows the token with index
  // `first`
  // + i.
  virtual void Score(SequenceState& sequence, int first, const LogitsView& rows) = 0;

  // All tokens are fed; `rows` holds the logit_rows logits of this sequence, row 0 first, to be overwritten
  // at will. Fills in sequence.answer; what its verdict rejects is then taken out of the cache. False if it
  // appended tokens that must be fed first. Called for several sessions at once, from several threads.
  virtual absl::StatusOr<bool> Decide(SequenceState& sequence, const LogitsView& rows) = 0;

  // What the device is to do instead of Score and Decide, once all tokens are fed; nothing where only they
  // can. Whether it is done there the model says (Model::CanRun).
  virtual std::optional<DeviceTask> MakeDeviceTask(const SequenceState& sequence) const = 0;

  // The device has done so, well. Fills in sequence.answer, and appends the tokens that the device fed beyond
  // sequence.cache.
  virtual void TakeDeviceResult(SequenceState& sequence, DeviceTask& task) = 0;

  // The item's time is over. OK ends it with sequence.answer as it is, an error with that; nothing lets it go
  // on.
  virtual std::optional<absl::Status> OnDeadline(SequenceState& sequence) = 0;
};

struct WorkerOptions {
  int max_batch_rows = 512;
  int max_sequences = 256;
  absl::Duration lease = absl::Seconds(60);
  bool prefix_cache = true;       // keep blocks of sequences that are gone for others that begin like them
  bool check_invariants = false;  // after every step; for tests
};

// What happened in a forward pass, for metrics.
struct StepStats {
  int sequences = 0;
  int rows = 0;
  absl::Duration duration;
};

// The state of a worker, for metrics.
struct WorkerState {
  int sessions = 0;
  int waiting = 0;  // items in progress
  int blocks_used = 0, blocks_cached = 0, blocks_free = 0;
  int64_t prefix_queried = 0,
          prefix_hit = 0;  // tokens that were looked for in, and found in the prefix cache
  int64_t preemptions = 0;
};

// Thread-safe.
class Worker {
 public:
  // Called from the engine thread after each step, and after anything that changed the state while idle.
  struct Hooks {
    std::function<void(const StepStats&)> on_step;
    std::function<void(const WorkerState&)> on_state;
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
  void Release(const SequenceId& id);
  // Drops the item of that round, if it is in progress. The sequence stays.
  void Cancel(const SequenceId& id, uint64_t round);

  // Until nothing is in progress or waits, or the deadline has come.
  void AwaitIdle(absl::Time deadline);

  const Runner& runner() const { return *runner_; }

 private:
  struct ReleaseCommand {
    SequenceId id;
  };
  struct CancelCommand {
    SequenceId id;
    uint64_t round;
  };
  using Command = std::variant<WorkItem, ReleaseCommand, CancelCommand>;
  // A sequence's part in a step.
  struct Part {
    SequenceState* sequence;
    int rows;
    std::optional<DeviceTask> task;
  };
  // A sequence whose tokens are all fed.
  struct Decision {
    SequenceState* sequence;
    LogitsView rows;
    absl::StatusOr<bool> done = true;  // what the sampler says
  };

  void Put(Command command);
  // What has arrived. With no item in progress it waits until something does, the worker ends, or `deadline`.
  // False if it ends.
  bool TakeAll(absl::Time deadline, std::vector<Command>& commands);

  // Engine thread.
  void Run();
  void Handle(WorkItem item);
  void Handle(const ReleaseCommand& command);
  void Handle(const CancelCommand& command);
  absl::StatusOr<SequenceState*> FindOrCreate(const WorkItem& item);
  // The sequence that a new one with this item begins as a copy of, or null.
  SequenceState* FindOrigin(const WorkItem& item);
  absl::Status MakeRoomForSequence();
  absl::Status Admit(SequenceState& sequence, WorkItem& item, uint64_t digest);
  void EndExpired();
  void Step();
  std::vector<Part> ChooseParts();
  void AdoptPrefix(SequenceState& sequence);
  void CheckInvariants();
  void DecideAll(std::vector<Decision>& decisions);
  void Settle(SequenceState& sequence, absl::Status status);
  bool Reserve(SequenceState& sequence, int rows);
  bool Preempt(const SequenceState& for_session);
  void Finish(SequenceState& sequence, absl::Status status);
  void Drop(SequenceState& sequence);
  void ReportState();

  const std::unique_ptr<Runner> runner_;
  const std::unique_ptr<Sampler> sampler_;
  const WorkerOptions options_;
  const Hooks hooks_;

  BlockPool pool_;
  PrefixIndex prefixes_;
  LeaseTable<SequenceState> sequences_;
  std::vector<SequenceState*> active_;  // in order of arrival
  uint64_t last_number_ = 0;
  int64_t preemptions_ = 0;
  int64_t prefix_queried_ = 0, prefix_hit_ = 0;

  // Guards what follows. Not absl::Mutex: thread sanitizer cannot see into Debian's build of it.
  std::mutex mutex_;
  std::condition_variable arrived_;  // in the mailbox, or that the thread is to stop
  std::condition_variable idle_;
  std::vector<Command> mailbox_;
  bool busy_ = false;  // the engine thread has commands or items in hand
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace outrider
