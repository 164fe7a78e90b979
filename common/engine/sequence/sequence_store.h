// The sequences that a server holds and the items in progress on them: idempotence, admission, leases, block
// allocation with preemption, and the prefix cache.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/engine/sequence/sequence_state.h"
#include "common/engine/work_item.h"
#include "common/kv/block_id.h"
#include "common/kv/block_pool.h"
#include "common/kv/lease_table.h"
#include "common/kv/prefix_index.h"

namespace outrider {

struct SequenceStoreOptions {
  int max_sequences = 256;
  absl::Duration lease = absl::Seconds(60);
  bool prefix_cache = true;  // keep blocks of finished sequences for others with the same prefix
  // A sequence that has been idle for this long counts as abandoned, and others may take its place: a round
  // is much shorter.
  absl::Duration abandoned_after = absl::Seconds(1);
};

// Gauges and counters of a store, for metrics.
struct SequenceStoreCounts {
  int sequences = 0;
  int in_progress = 0;  // items
  int blocks_used = 0, blocks_cached = 0, blocks_free = 0;
  // Tokens that were looked up, and found, in the prefix cache.
  int64_t prefix_queried = 0, prefix_hit = 0;
  int64_t preemptions = 0;
};

// Calls the answer of each item once, as soon as possible, unless the item is cancelled or its sequence is
// released. Not thread-safe: the engine thread owns it.
//
// A sequence is a branch from an item with WorkItem::branch to one without, or to Promote. A branch takes
// neither a place nor blocks from other sequences, except blocks of the prefix cache. Other sequences take
// the places and blocks of branches before anything else. A branch that begins as a copy of another sequence
// counts as equally old, so that it can take over from it.
class SequenceStore {
 public:
  using MoveSlots = std::function<void(std::span<const BlockId> blocks, std::span<const SlotMove> moves)>;

  // `copy_block` copies keys and values of all layers from one block to another; `move_slots` moves them
  // within the blocks of a sequence, in this order.
  SequenceStore(const SequenceLimits& limits, const SequenceStoreOptions& options,
                std::function<void(BlockId from, BlockId to)> copy_block, MoveSlots move_slots);

  // Admits an item and returns its sequence, which has work in progress from now on. Returns null if the item
  // is answered at once (refused, or a repetition of an answered one), or if it repeats the item in progress,
  // whose answer it will get.
  //
  // When max_sequences are held, a new one takes the place of an abandoned one, or is refused with
  // RESOURCE_EXHAUSTED, reason SEQUENCES_EXHAUSTED: no two sequences that are in use evict each other in
  // turn.
  //
  // A new sequence that begins as a copy also takes over its origin's parameters if the item names the same.
  SequenceState* Admit(WorkItem item);

  // Frees a sequence. Its id is not accepted again, unless it is a branch's.
  void Release(const SequenceId& id);
  // Makes a branch an ordinary sequence. Work in progress on it has this deadline from now on. Ignored for an
  // unknown sequence or one that is no branch.
  void Promote(const SequenceId& id, absl::Time deadline) {
    SequenceState* entry = entries_.Find(id);
    if (entry == nullptr || !entry->branch_) return;
    entry->branch_ = false;
    entry->item_.deadline = deadline;
  }
  // Drops the item of that round without an answer, if it is in progress. The sequence stays.
  void Cancel(const SequenceId& id, uint64_t round) {
    SequenceState* entry = entries_.Find(id);
    if (entry != nullptr && entry->active_ && entry->round_ == round) Drop(*entry);
  }

  // The sequences with work in progress, in order of arrival.
  const std::vector<SequenceState*>& active() const { return active_; }

  // Makes the next `rows` positions of an active sequence writable. If blocks run out, it preempts other
  // sequences, whose work ends with RESOURCE_EXHAUSTED, or with the tokens that they have drafted. Returns
  // false if this sequence's own work ended in one of these ways. A branch preempts nobody.
  bool Reserve(SequenceState& sequence, int rows);

  // Begins the target's own proposal after the verdict on the work in progress. Keeps the verdict's path,
  // commits its token, which is to be computed, and makes `slots` positions from there on writable. Returns
  // false if there is no room: a proposal preempts nobody. The caller then calls Finish.
  bool BeginProposal(SequenceState& sequence, int slots);

  // Ends the work in progress with `status` and the sequence's answer. The verdict's path of a verified
  // proposal stays in the cache. An error drops all tokens that are not committed.
  void Finish(SequenceState& sequence, absl::Status status);

  // Frees sequences whose lease has expired. Work in progress renews the lease: such a sequence does not wait
  // for its coordinator.
  void ExpireLeases(absl::Time now) {
    for (const SequenceState* sequence : active_) entries_.Touch(sequence->id(), now);
    entries_.Expire(now, options_.lease);
  }

  SequenceStoreCounts counts() const;
  // Aborts if block pool and sequences are inconsistent; for tests.
  void CheckInvariants();

 private:
  // Handles an item whose round is not new. Returns whether it did: the item is answered, or will be.
  bool AnswerOldRound(SequenceState& entry, WorkItem& item, uint64_t digest);
  absl::StatusOr<SequenceState*> FindOrCreate(const WorkItem& item);
  // The sequence that this item's new sequence copies, or null.
  SequenceState* FindOrigin(const WorkItem& item);
  // Checks that the first item of a sequence has the origin and the parameters that it needs.
  static absl::Status CheckOrigin(const WorkItem& item, const SequenceState* origin);
  absl::Status MakeRoomForSequence(bool branch);
  bool Abandoned(const SequenceState& entry, absl::Time now) const {
    return !entry.active_ && now - entry.idle_since_ >= options_.abandoned_after;
  }
  // Checks the item, then updates the sequence's parameters and tokens. An error leaves the tokens unchanged.
  absl::Status Reconcile(SequenceState& entry, const WorkItem& item);
  absl::Status UpdateParams(SequenceState& entry, const WorkItem& item);
  void Start(SequenceState& entry, WorkItem item, uint64_t digest);
  // Drops the item in progress without an answer, and its proposal.
  void Drop(SequenceState& entry);
  void DropProposal(SequenceState& entry) {
    if (entry.cache_.size() > entry.committed_) entry.cache_.Truncate(entry.committed_);
  }
  // Keeps the verdict's path of a verified proposal.
  void KeepPath(SequenceState& entry);
  // Changes the tokens with `change`, which returns moves as CachedSequence does, and carries out these
  // moves.
  absl::Status Compact(SequenceState& entry,
                       absl::FunctionRef<absl::StatusOr<std::vector<SlotMove>>()> change);
  // Makes the next `rows` positions writable, if there are blocks for them.
  bool ReserveFree(SequenceState& sequence, int rows);
  bool PreemptFor(const SequenceState& for_entry);
  void EvictCache(SequenceState& victim);
  // Ends the work in progress on a sequence that finds no room, or loses it.
  void FinishForLackOfRoom(SequenceState& entry);

  const SequenceLimits limits_;
  const SequenceStoreOptions options_;
  const std::function<void(BlockId from, BlockId to)> copy_block_;
  const MoveSlots move_slots_;

  BlockPool pool_;
  PrefixIndex prefixes_;
  LeaseTable<SequenceState> entries_;
  std::vector<SequenceState*> active_;
  uint64_t last_arrival_ = 0;
  int64_t preemptions_ = 0;
  int64_t prefix_queried_ = 0, prefix_hit_ = 0;
};

}  // namespace outrider
