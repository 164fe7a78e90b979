// How SequenceStore makes room for tokens.
#include <utility>

#include "common/engine/sequence/sequence_store.h"

namespace outrider {

bool SequenceStore::BeginProposal(SequenceState& sequence, int slots) {
  KeepPath(sequence);
  sequence.proposes_ = true;
  sequence.committed_ = sequence.cache_.size();
  const absl::StatusOr<std::vector<BlockCopy>> copies =
      sequence.cache_.Reserve(sequence.num_computed() + slots);
  if (!copies.ok()) return false;
  for (const BlockCopy& copy : *copies) copy_block_(copy.from, copy.to);
  sequence.Append(sequence.answer_.verdict->token);
  sequence.committed_ = sequence.cache_.size();
  return true;
}

bool SequenceStore::Reserve(SequenceState& sequence, int rows) {
  while (true) {
    absl::StatusOr<std::vector<BlockCopy>> copies = sequence.cache_.Reserve(sequence.num_computed() + rows);
    if (copies.ok()) {
      for (const BlockCopy& copy : *copies) copy_block_(copy.from, copy.to);
      return true;
    }
    if (sequence.branch_) {
      sequence.DropPending();
      FinishForLackOfRoom(sequence);
      return false;
    }
    if (PreemptFor(sequence)) continue;
    EvictCache(sequence);
    return false;
  }
}

// Evicts the cache of another sequence: of a branch, else of an abandoned one, else of the newest that
// arrived after `for_entry`, active or between two rounds. Old sequences therefore always make progress, and
// no two evict each other in turn. Returns false if there is no victim.
bool SequenceStore::PreemptFor(const SequenceState& for_entry) {
  SequenceState* branch = nullptr;
  SequenceState* abandoned = nullptr;
  SequenceState* newest = nullptr;
  entries_.ForEachOldestFirst([&, now = absl::Now()](const SequenceId&, SequenceState& entry) {
    if (&entry == &for_entry || entry.blocks().empty()) return true;
    if (entry.branch_) {
      branch = &entry;
      return false;
    }
    if (abandoned == nullptr && Abandoned(entry, now)) abandoned = &entry;
    if (entry.arrival_ > for_entry.arrival_ && (newest == nullptr || entry.arrival_ > newest->arrival_)) {
      newest = &entry;
    }
    return true;
  });
  SequenceState* const victim = branch != nullptr ? branch : abandoned != nullptr ? abandoned : newest;
  if (victim == nullptr) return false;
  EvictCache(*victim);
  return true;
}

void SequenceStore::EvictCache(SequenceState& victim) {
  if (!victim.branch_) ++preemptions_;  // nobody waits for a branch
  victim.cache_.Reset();
  victim.prefix_cursor_.clear();
  victim.committed_ = 0;
  victim.proposer_computed_ = 0;
  if (victim.active_) FinishForLackOfRoom(victim);
}

}  // namespace outrider
