#include "common/engine/sequence/sequence_store.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/spec/check.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

// Most repetitions of an item in progress that wait for its answer. A sender repeats an item once for each
// connection that it lost.
constexpr size_t kMaxListeners = 16;

absl::Status SequenceUnknown() {
  return MakeError(absl::StatusCode::kNotFound, "SEQUENCE_UNKNOWN", "sequence_unknown");
}
absl::Status ParamsUnknown() {
  return MakeError(absl::StatusCode::kFailedPrecondition, "PARAMS_UNKNOWN", "params_unknown");
}
absl::Status KvExhausted() {
  return MakeError(absl::StatusCode::kResourceExhausted, "KV_EXHAUSTED", "kv_exhausted");
}

Answer Refusal(absl::Status status, int num_computed) {
  Answer answer;
  answer.status = std::move(status);
  answer.num_computed = num_computed;
  return answer;
}

}  // namespace

SequenceStore::SequenceStore(const SequenceLimits& limits, const SequenceStoreOptions& options,
                             std::function<void(BlockId from, BlockId to)> copy_block, MoveSlots move_slots)
    : limits_(limits),
      options_(options),
      copy_block_(std::move(copy_block)),
      move_slots_(std::move(move_slots)),
      pool_(limits.kv_blocks),
      prefixes_(&pool_, limits.block_size) {}

SequenceState* SequenceStore::Admit(WorkItem item) {
  const bool is_new = entries_.Find(item.id) == nullptr;
  absl::StatusOr<Entry*> found = FindOrCreate(item);
  if (!found.ok()) {
    const Entry* known = entries_.Find(item.id);
    item.answer(Refusal(found.status(), known == nullptr ? 0 : known->held()));
    return nullptr;
  }
  Entry& entry = **found;
  entries_.Touch(item.id, absl::Now());

  const uint64_t digest = DigestOf(item);
  if (AnswerOldRound(entry, item, digest)) return nullptr;
  if (entry.active_) {
    // A newer round: nobody waits for the old one any more.
    const auto listeners = std::move(entry.listeners);
    Drop(entry);
    const Answer superseded =
        Refusal(MakeError(absl::StatusCode::kAborted, "ROUND_SUPERSEDED", "round_superseded"), entry.held());
    for (const auto& listener : listeners) listener(superseded);
  }
  if (absl::Status status = Reconcile(entry, item); !status.ok()) {
    item.answer(Refusal(std::move(status), entry.held()));
    // A refused first item leaves no sequence behind.
    if (is_new) entries_.Erase(item.id);
    return nullptr;
  }
  Start(entry, std::move(item), digest);
  return &entry;
}

bool SequenceStore::AnswerOldRound(Entry& entry, WorkItem& item, uint64_t digest) {
  if (entry.digest == 0 && !entry.active_) return false;
  if (item.round > entry.round) return false;
  if (item.round < entry.round) {
    item.answer(Refusal(MakeError(absl::StatusCode::kAborted, "ROUND_STALE", "round_stale"), entry.held()));
  } else if (digest != entry.digest) {
    item.answer(
        Refusal(MakeError(absl::StatusCode::kAborted, "ROUND_CONFLICT", "round_conflict"), entry.held()));
  } else if (entry.active_ && entry.listeners.size() >= kMaxListeners) {
    item.answer(Refusal(
        MakeError(absl::StatusCode::kResourceExhausted, "SERVER_BUSY", "server_busy: repeated too often"),
        entry.held()));
  } else if (entry.active_) {
    entry.listeners.push_back(std::move(item.answer));
  } else {
    item.answer(entry.answer_);
  }
  return true;
}

absl::StatusOr<SequenceStore::Entry*> SequenceStore::FindOrCreate(const WorkItem& item) {
  if (!item.invalid.ok()) return item.invalid;
  if (Entry* entry = entries_.Find(item.id)) return entry;
  if (entries_.released(item.id)) return SequenceUnknown();
  if (absl::Status status = CheckOrigin(item, FindOrigin(item)); !status.ok()) return status;
  if (absl::Status status = MakeRoomForSequence(item.branch); !status.ok()) return status;
  // Making room may have evicted the origin itself. It is looked up before there is an entry that has the
  // item's own id.
  const Entry* origin = FindOrigin(item);
  if (absl::Status status = CheckOrigin(item, origin); !status.ok()) return status;
  Entry* entry = entries_.Insert(item.id, absl::Now(), item.id, &pool_, limits_.block_size);
  entry->arrival = ++last_arrival_;
  entry->idle_since = absl::Now();
  if (origin != nullptr) CopyOrigin(*entry, *origin, item);
  return entry;
}

absl::Status SequenceStore::CheckOrigin(const WorkItem& item, const Entry* origin) {
  if ((item.base != 0 || item.fork_of) && origin == nullptr) return SequenceUnknown();
  const bool inherits = origin != nullptr && origin->params_hash == item.params_hash;
  return item.params != nullptr || inherits ? absl::OkStatus() : ParamsUnknown();
}

void SequenceStore::CopyOrigin(Entry& entry, const Entry& origin, const WorkItem& item) {
  entry.cache_.Fork(origin.cache_, static_cast<int>(item.base));
  entry.proposer_computed_ = std::min(origin.proposer_computed_, entry.num_computed());
  if (item.branch) entry.arrival = origin.arrival;
  if (item.params_hash != origin.params_hash) return;
  entry.params_ = origin.params_;
  entry.controls_ = std::make_unique<Controls>(*origin.controls_);
  if (origin.proposal_controls_) {
    entry.proposal_controls_ = std::make_unique<Controls>(*origin.proposal_controls_);
  }
  entry.params_hash = origin.params_hash;
}

SequenceStore::Entry* SequenceStore::FindOrigin(const WorkItem& item) {
  Entry* origin = item.fork_of ? entries_.Find(*item.fork_of) : nullptr;
  if (origin == nullptr || static_cast<int64_t>(item.base) > origin->cache_.tree_begin()) return nullptr;
  if (item.params != nullptr && KeepsHiddenStates(*item.params) != KeepsHiddenStates(origin->params())) {
    return nullptr;
  }
  return origin->cache_.prefix_hash(static_cast<int>(item.base)) == item.prefix_hash ? origin : nullptr;
}

// If there are too many, evicts the least recently used branch, else the least recently used abandoned
// sequence; its coordinator sends it again when needed.
absl::Status SequenceStore::MakeRoomForSequence(bool branch) {
  if (static_cast<int>(entries_.size()) < options_.max_sequences) return absl::OkStatus();
  Entry* victim = nullptr;
  if (!branch) {
    entries_.ForEachOldestFirst([&, now = absl::Now()](const SequenceId&, Entry& entry) {
      if (entry.branch_ || (victim == nullptr && Abandoned(entry, now))) victim = &entry;
      return !entry.branch_;
    });
  }
  if (victim == nullptr) {
    return MakeError(absl::StatusCode::kResourceExhausted, "SEQUENCES_EXHAUSTED", "sequences_exhausted");
  }
  if (victim->active_) FinishForLackOfRoom(*victim);
  entries_.Erase(SequenceId(victim->id()));
  return absl::OkStatus();
}

absl::Status SequenceStore::Reconcile(Entry& entry, const WorkItem& item) {
  if (item.params == nullptr && item.params_hash != entry.params_hash) return ParamsUnknown();
  if (absl::Status status = CheckLimits(item, limits_); !status.ok()) return status;
  const bool kept = entry.params_ != nullptr && KeepsHiddenStates(*entry.params_);
  if (absl::Status status = UpdateParams(entry, item); !status.ok()) return status;
  // What was computed lacks what the new proposer needs, or the other way round.
  if (KeepsHiddenStates(*entry.params_) != kept) entry.cache_.Reset();
  entry.proposer_computed_ = std::min(entry.proposer_computed_, static_cast<int>(item.base));
  return Compact(entry, [&] { return entry.cache_.Reconcile(item.base, item.prefix_hash, item.tokens); });
}

absl::Status SequenceStore::Compact(Entry& entry,
                                    absl::FunctionRef<absl::StatusOr<std::vector<SlotMove>>()> change) {
  // The blocks that the moves come from may be dropped with what is not kept.
  std::vector<BlockId> blocks;
  if (!entry.parents().empty()) blocks.assign(entry.blocks().begin(), entry.blocks().end());
  const absl::StatusOr<std::vector<SlotMove>> moves = change();
  if (moves.ok() && !moves->empty()) move_slots_(blocks, *moves);
  return moves.status();
}

absl::Status SequenceStore::UpdateParams(Entry& entry, const WorkItem& item) {
  const bool known = item.params_hash == entry.params_hash && entry.controls_ != nullptr;
  if (item.params == nullptr || known) return absl::OkStatus();
  absl::StatusOr<Controls> controls =
      Controls::Create(item.params->sampling, item.params->prompt_length, limits_.vocab);
  if (!controls.ok()) return controls.status();
  std::unique_ptr<Controls> proposal_controls;
  if (item.params->proposer) {
    absl::StatusOr<Controls> own =
        Controls::Create(ProposalSampling(*item.params), item.params->prompt_length, limits_.vocab);
    if (!own.ok()) return own.status();
    proposal_controls = std::make_unique<Controls>(*std::move(own));
  }
  entry.proposal_controls_ = std::move(proposal_controls);
  entry.controls_ = std::make_unique<Controls>(*std::move(controls));
  entry.params_ = item.params;
  entry.params_hash = item.params_hash;
  return absl::OkStatus();
}

void SequenceStore::Start(Entry& entry, WorkItem item, uint64_t digest) {
  entry.prefix_cursor.resize(
      std::min(entry.prefix_cursor.size(), item.base / static_cast<size_t>(limits_.block_size)));
  entry.active_ = true;
  entry.started_ = false;
  entry.round = item.round;
  entry.digest = digest;
  entry.committed_ = entry.cache_.size();
  entry.logit_rows_ = 0;
  entry.branch_ = item.branch;
  entry.listeners.clear();
  entry.listeners.push_back(std::move(item.answer));
  entry.answer_ = Answer();
  entry.item_ = std::move(item);
  active_.push_back(&entry);
  AdoptPrefix(entry);
}

// Starts a sequence without computed tokens from the prefix cache. Its last token is always computed, for its
// logits, and so are all tokens of a prompt that is scored.
void SequenceStore::AdoptPrefix(Entry& entry) {
  if (!options_.prefix_cache || entry.num_computed() > 0 || entry.prompt_logprobs() >= 0) return;
  const int limit = entry.committed_ - 1;
  PrefixIndex::Match match = prefixes_.Find(entry.cache_, limit, CacheSaltOf(entry.params()));
  entry.cache_.Adopt(match.blocks);
  entry.prefix_cursor = std::move(match.cursor);
  entry.answer_.prefix_hit = entry.num_computed();
  prefix_queried_ += limit;
  prefix_hit_ += entry.num_computed();
}

void SequenceStore::Release(const SequenceId& id) {
  Entry* entry = entries_.Find(id);
  if (entry != nullptr && entry->active_) Drop(*entry);
  if (entry != nullptr && entry->branch_) {
    // There are many, and a late item finds no origin soon: to remember them would push out others.
    entries_.Erase(id);
  } else {
    entries_.Release(id);
  }
}

void SequenceStore::Promote(const SequenceId& id, absl::Time deadline) {
  Entry* entry = entries_.Find(id);
  if (entry == nullptr || !entry->branch_) return;
  entry->branch_ = false;
  entry->item_.deadline = deadline;
}

void SequenceStore::Cancel(const SequenceId& id, uint64_t round) {
  Entry* entry = entries_.Find(id);
  if (entry != nullptr && entry->active_ && entry->round == round) Drop(*entry);
}

void SequenceStore::Drop(Entry& entry) {
  entry.active_ = false;
  entry.idle_since = absl::Now();
  entry.digest = 0;
  entry.listeners.clear();
  DropProposal(entry);
  std::erase(active_, &entry);
}

void SequenceStore::DropProposal(Entry& entry) {
  if (entry.cache_.size() > entry.committed_) entry.cache_.Truncate(entry.committed_);
}

void SequenceStore::Finish(SequenceState& sequence, absl::Status status) {
  Entry& entry = EntryOf(sequence);
  std::erase(active_, &entry);
  entry.active_ = false;
  entry.idle_since = absl::Now();
  Answer& answer = entry.answer_;
  answer.status = std::move(status);
  if (!answer.status.ok()) {
    // A failed item changes nothing but the cache, and may be sent again.
    entry.digest = 0;
    DropProposal(entry);
  } else if (entry.proposes) {
    entry.DropPending();
  } else if (answer.verdict != nullptr) {
    KeepPath(entry);
  }
  entry.proposes = false;
  // Branches come and go by the thousand: what they leave behind is the next one's, and not the index's.
  if (options_.prefix_cache && !entry.branch_ && entry.num_computed() > 0) {
    prefixes_.Insert(entry.cache_, std::min(entry.committed_, entry.num_computed()), entry.prefix_cursor,
                     CacheSaltOf(entry.params()));
  }
  answer.num_computed = entry.held();
  const absl::Time now = absl::Now();
  answer.timing.queue = (entry.started_ ? entry.started_at_ : now) - entry.item_.received;
  answer.timing.compute = entry.started_ ? now - entry.started_at_ : absl::ZeroDuration();
  for (const auto& listener : std::exchange(entry.listeners, {})) listener(answer);
}

void SequenceStore::KeepPath(Entry& entry) {
  const absl::Status kept =
      Compact(entry, [&] { return entry.cache_.Keep(entry.committed_, entry.answer_.verdict->path); });
  OUTRIDER_CHECK(kept.ok());
}

// What was drafted is used. How far a draft has come may depend on its tokens: to lose it would be to choose
// among them.
void SequenceStore::FinishForLackOfRoom(Entry& entry) {
  const bool drafted = entry.answer_.next || !entry.answer_.proposal.empty();
  Finish(entry, drafted ? absl::OkStatus() : KvExhausted());
}

void SequenceStore::ExpireLeases(absl::Time now) {
  for (const SequenceState* sequence : active_) entries_.Touch(sequence->id(), now);
  entries_.Expire(now, options_.lease);
}

SequenceStoreCounts SequenceStore::counts() const {
  return {.sequences = static_cast<int>(entries_.size()),
          .in_progress = static_cast<int>(active_.size()),
          .blocks_used = pool_.num_used(),
          .blocks_cached = pool_.num_cached(),
          .blocks_free = pool_.num_free(),
          .prefix_queried = prefix_queried_,
          .prefix_hit = prefix_hit_,
          .preemptions = preemptions_};
}

void SequenceStore::CheckInvariants() {
  OUTRIDER_CHECK(pool_.CheckInvariants().ok());
  std::vector<int> references(static_cast<size_t>(pool_.num_blocks()));
  entries_.ForEachOldestFirst([&](const SequenceId&, const Entry& entry) {
    for (BlockId block : entry.blocks()) ++references[static_cast<size_t>(block)];
    OUTRIDER_CHECK(entry.num_computed() <= entry.cache_.table().capacity());
    return true;
  });
  for (BlockId block = 0; block < pool_.num_blocks(); ++block) {
    OUTRIDER_CHECK(references[static_cast<size_t>(block)] == pool_.ref_count(block));
  }
}

}  // namespace outrider
