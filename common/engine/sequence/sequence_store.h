// The sequences that a server holds, and the items in progress on them: idempotence, admission, leases,
// blocks and who has to give them up, and prefixes that are shared.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/engine/sequence/admission.h"
#include "common/engine/sequence/sequence_state.h"
#include "common/engine/work_item.h"
#include "common/kv/block_pool.h"
#include "common/kv/lease_table.h"
#include "common/kv/prefix_index.h"
#include "common/kv/sequence_id.h"

namespace outrider {

struct SequenceStoreOptions {
  int max_sequences = 256;
  absl::Duration lease = absl::Seconds(60);
  bool prefix_cache = true;  // keep blocks of sequences that are gone for others that begin like them
};

// How much a store holds, and what happened in it, for metrics.
struct SequenceStoreCounts {
  int sequences = 0;
  int in_progress = 0;  // items
  int blocks_used = 0, blocks_cached = 0, blocks_free = 0;
  // Tokens that were looked for in, and found in the prefix cache.
  int64_t prefix_queried = 0, prefix_hit = 0;
  int64_t preemptions = 0;
};

// Answers items as soon as it can: the answer to an item is called once, unless the item is cancelled or its
// sequence released. One thread.
class SequenceStore {
 public:
  // `copy_block` copies keys and values from a block to another.
  SequenceStore(const SequenceLimits& limits, const SequenceStoreOptions& options,
                std::function<void(BlockId from, BlockId to)> copy_block);

  // Takes an item in: its sequence has work in progress from now on. Null if the item was answered at once,
  // refused or as before, or if it is the one in progress already, whose answer it will get.
  SequenceState* Admit(WorkItem item);

  // Frees a sequence; its id is not known again.
  void Release(const SequenceId& id);
  // Drops the item of that round, if it is in progress. The sequence stays.
  void Cancel(const SequenceId& id, uint64_t round);

  // Those with work in progress, in order of arrival.
  const std::vector<SequenceState*>& active() const { return active_; }

  // Backs the next `rows` tokens of an active sequence with blocks, at the cost of others if need be: the
  // work of those may end, with RESOURCE_EXHAUSTED. False if that of this one did.
  bool Reserve(SequenceState& sequence, int rows);

  // Ends the work in progress with `status` and the sequence's answer. Of a proposal that was judged, the
  // verdict's path stays in the cache. An error takes back all that is not committed.
  void Finish(SequenceState& sequence, absl::Status status);

  // Frees sequences whose lease is over. Those with work in progress do not wait for their coordinator.
  void ExpireLeases(absl::Time now);

  SequenceStoreCounts counts() const;
  // Stops the process if blocks and sequences do not agree; for tests.
  void CheckInvariants();

 private:
  struct Entry final : SequenceState {
    Entry(const SequenceId& id, BlockPool* pool, int block_size) : SequenceState(id, pool, block_size) {}
    using SequenceState::active_;
    using SequenceState::answer_;
    using SequenceState::cache_;
    using SequenceState::committed_;
    using SequenceState::controls_;
    using SequenceState::item_;
    using SequenceState::logit_rows_;
    using SequenceState::params_;
    using SequenceState::started_;
    using SequenceState::started_at_;

    uint64_t arrival = 0;               // in order of arrival
    absl::Time idle_since;              // unless active
    PrefixIndex::Cursor prefix_cursor;  // its blocks that others can find
    uint64_t params_hash = 0;

    // The item in progress, or the last one that ended.
    uint64_t round = 0;
    uint64_t digest = 0;  // 0: no item yet, or its answer was an error
    std::vector<std::function<void(const Answer&)>> listeners;
  };
  static Entry& EntryOf(SequenceState& sequence) { return static_cast<Entry&>(sequence); }

  // Whether the item was answered, or will be, because its round is not new.
  bool AnswerOldRound(Entry& entry, WorkItem& item, uint64_t digest);
  absl::StatusOr<Entry*> FindOrCreate(const WorkItem& item);
  // The sequence that a new one with this item begins as a copy of, or null.
  Entry* FindOrigin(const WorkItem& item);
  absl::Status MakeRoomForSequence();
  // Checks the item, and gives the sequence its parameters and tokens. An error changes nothing.
  absl::Status Reconcile(Entry& entry, const WorkItem& item);
  absl::Status UpdateParams(Entry& entry, const WorkItem& item);
  void Start(Entry& entry, WorkItem item, uint64_t digest);
  void AdoptPrefix(Entry& entry);
  // Takes the item out without an answer and forgets what was drafted.
  void Drop(Entry& entry);
  void DropProposal(Entry& entry);
  bool PreemptFor(const Entry& for_entry);
  void EvictCache(Entry& victim);

  const SequenceLimits limits_;
  const SequenceStoreOptions options_;
  const std::function<void(BlockId from, BlockId to)> copy_block_;

  BlockPool pool_;
  PrefixIndex prefixes_;
  LeaseTable<Entry> entries_;
  std::vector<SequenceState*> active_;
  uint64_t last_arrival_ = 0;
  int64_t preemptions_ = 0;
  int64_t prefix_queried_ = 0, prefix_hit_ = 0;
};

}  // namespace outrider
