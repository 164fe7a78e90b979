// How SequenceStore makes room for tokens.
#include <utility>

#include "common/engine/sequence/sequence_store.h"

namespace outrider {

bool SequenceStore::BeginProposal(SequenceState& sequence, int slots) {
  Entry& entry = EntryOf(sequence);
  KeepPath(entry);
  entry.proposes = true;
  entry.committed_ = entry.cache_.size();
  const absl::StatusOr<std::vector<BlockCopy>> copies = entry.cache_.Reserve(entry.num_computed() + slots);
  if (!copies.ok()) return false;
  for (const BlockCopy& copy : *copies) copy_block_(copy.from, copy.to);
  entry.Append(entry.answer_.verdict->token);
  entry.committed_ = entry.cache_.size();
  return true;
}

bool SequenceStore::Reserve(SequenceState& sequence, int rows) {
  Entry& entry = EntryOf(sequence);
  while (true) {
    absl::StatusOr<std::vector<BlockCopy>> copies = entry.cache_.Reserve(entry.num_computed() + rows);
    if (copies.ok()) {
      for (const BlockCopy& copy : *copies) copy_block_(copy.from, copy.to);
      return true;
    }
    if (entry.branch_) {
      entry.DropPending();
      FinishForLackOfRoom(entry);
      return false;
    }
    if (PreemptFor(entry)) continue;
    EvictCache(entry);
    return false;
  }
}

// Evicts the cache of another sequence: of a branch, else of an abandoned one, else of the newest that
// arrived after `for_entry`, active or between two rounds. Old sequences therefore always make progress, and
// no two evict each other in turn. Returns false if there is no victim.
bool SequenceStore::PreemptFor(const Entry& for_entry) {
  Entry* branch = nullptr;
  Entry* abandoned = nullptr;
  Entry* newest = nullptr;
  entries_.ForEachOldestFirst([&, now = absl::Now()](const SequenceId&, Entry& entry) {
    if (&entry == &for_entry || entry.blocks().empty()) return true;
    if (entry.branch_) {
      branch = &entry;
      return false;
    }
    if (abandoned == nullptr && Abandoned(entry, now)) abandoned = &entry;
    if (entry.arrival > for_entry.arrival && (newest == nullptr || entry.arrival > newest->arrival)) {
      newest = &entry;
    }
    return true;
  });
  Entry* const victim = branch != nullptr ? branch : abandoned != nullptr ? abandoned : newest;
  if (victim == nullptr) return false;
  EvictCache(*victim);
  return true;
}

void SequenceStore::EvictCache(Entry& victim) {
  if (!victim.branch_) ++preemptions_;  // nobody waits for a branch
  victim.cache_.Reset();
  victim.prefix_cursor.clear();
  victim.committed_ = 0;
  victim.proposer_computed_ = 0;
  if (victim.active_) FinishForLackOfRoom(victim);
}

}  // namespace outrider
