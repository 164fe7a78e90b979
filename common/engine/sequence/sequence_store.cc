#include "common/engine/sequence/sequence_store.h"

#include <algorithm>
#include <utility>

#include "common/spec/check.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

// The maximum number of repetitions of an item in progress that wait for its answer. A sender repeats an item
// once per lost connection.
constexpr size_t kMaxListeners = 16;

absl::Status SequenceUnknown() {
  return MakeError(absl::StatusCode::kNotFound, "SEQUENCE_UNKNOWN", "sequence_unknown");
}
absl::Status ParamsUnknown() {
  return MakeError(absl::StatusCode::kFailedPrecondition, "PARAMS_UNKNOWN", "params_unknown");
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
  absl::StatusOr<SequenceState*> found = FindOrCreate(item);
  if (!found.ok()) {
    const SequenceState* known = entries_.Find(item.id);
    item.answer(Refusal(found.status(), known == nullptr ? 0 : known->held()));
    return nullptr;
  }
  SequenceState& entry = **found;
  entries_.Touch(item.id, absl::Now());

  const uint64_t digest = DigestOf(item);
  if (AnswerOldRound(entry, item, digest)) return nullptr;
  if (entry.active_) {
    // A newer round: nobody waits for the old one any more.
    const auto listeners = std::move(entry.listeners_);
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

bool SequenceStore::AnswerOldRound(SequenceState& entry, WorkItem& item, uint64_t digest) {
  const auto refuse = [&](absl::StatusCode code, absl::string_view reason, absl::string_view message) {
    item.answer(Refusal(MakeError(code, reason, message), entry.held()));
  };
  if (entry.digest_ == 0 && !entry.active_) return false;
  if (item.round > entry.round_) return false;
  if (item.round < entry.round_) {
    refuse(absl::StatusCode::kAborted, "ROUND_STALE", "round_stale");
  } else if (digest != entry.digest_) {
    refuse(absl::StatusCode::kAborted, "ROUND_CONFLICT", "round_conflict");
  } else if (entry.active_ && entry.listeners_.size() >= kMaxListeners) {
    refuse(absl::StatusCode::kResourceExhausted, "SERVER_BUSY", "server_busy: repeated too often");
  } else if (entry.active_) {
    entry.listeners_.push_back(std::move(item.answer));
  } else {
    item.answer(entry.answer_);
  }
  return true;
}

absl::StatusOr<SequenceState*> SequenceStore::FindOrCreate(const WorkItem& item) {
  if (!item.invalid.ok()) return item.invalid;
  if (SequenceState* entry = entries_.Find(item.id)) return entry;
  if (entries_.released(item.id)) return SequenceUnknown();
  OUTRIDER_TRY(CheckOrigin(item, FindOrigin(item)));
  OUTRIDER_TRY(MakeRoomForSequence(item.branch));
  // Making room may have evicted the origin itself. It is looked up before there is an entry that has the
  // item's own id.
  const SequenceState* origin = FindOrigin(item);
  OUTRIDER_TRY(CheckOrigin(item, origin));
  SequenceState* entry = entries_.Insert(item.id, absl::Now(), item.id, &pool_, limits_.block_size);
  entry->arrival_ = ++last_arrival_;
  entry->idle_since_ = absl::Now();
  if (origin == nullptr) return entry;
  entry->cache_.Fork(origin->cache_, static_cast<int>(item.base));
  entry->proposer_computed_ = std::min(origin->proposer_computed_, entry->num_computed());
  if (item.branch) entry->arrival_ = origin->arrival_;
  if (item.params_hash != origin->params_hash_) return entry;
  entry->params_ = origin->params_;
  entry->params_hash_ = origin->params_hash_;
  entry->controls_ = std::make_unique<Controls>(*origin->controls_);
  if (origin->proposal_controls_) {
    entry->proposal_controls_ = std::make_unique<Controls>(*origin->proposal_controls_);
  }
  return entry;
}

absl::Status SequenceStore::CheckOrigin(const WorkItem& item, const SequenceState* origin) {
  if ((item.base != 0 || item.fork_of) && origin == nullptr) return SequenceUnknown();
  const bool inherits = origin != nullptr && origin->params_hash_ == item.params_hash;
  return item.params != nullptr || inherits ? absl::OkStatus() : ParamsUnknown();
}

SequenceState* SequenceStore::FindOrigin(const WorkItem& item) {
  SequenceState* origin = item.fork_of ? entries_.Find(*item.fork_of) : nullptr;
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
  SequenceState* victim = nullptr;
  if (!branch) {
    entries_.ForEachOldestFirst([&, now = absl::Now()](const SequenceId&, SequenceState& entry) {
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

absl::Status SequenceStore::Reconcile(SequenceState& entry, const WorkItem& item) {
  if (item.params == nullptr && item.params_hash != entry.params_hash_) return ParamsUnknown();
  OUTRIDER_TRY(CheckLimits(item, limits_));
  const bool kept = entry.params_ != nullptr && KeepsHiddenStates(*entry.params_);
  OUTRIDER_TRY(UpdateParams(entry, item));
  // The computed blocks lack the hidden states that the new proposer needs, or hold some that it does not.
  if (KeepsHiddenStates(*entry.params_) != kept) entry.cache_.Reset();
  entry.proposer_computed_ = std::min(entry.proposer_computed_, static_cast<int>(item.base));
  return Compact(entry, [&] { return entry.cache_.Reconcile(item.base, item.prefix_hash, item.tokens); });
}

absl::Status SequenceStore::Compact(SequenceState& entry,
                                    absl::FunctionRef<absl::StatusOr<std::vector<SlotMove>>()> change) {
  // The change may drop the blocks that the moves come from.
  std::vector<BlockId> blocks;
  if (!entry.parents().empty()) blocks.assign(entry.blocks().begin(), entry.blocks().end());
  const absl::StatusOr<std::vector<SlotMove>> moves = change();
  if (moves.ok() && !moves->empty()) move_slots_(blocks, *moves);
  return moves.status();
}

absl::Status SequenceStore::UpdateParams(SequenceState& entry, const WorkItem& item) {
  const bool known = item.params_hash == entry.params_hash_ && entry.controls_ != nullptr;
  if (item.params == nullptr || known) return absl::OkStatus();
  Controls controls =
      OUTRIDER_TRY(Controls::Create(item.params->sampling, item.params->prompt_length, limits_.vocab));
  std::unique_ptr<Controls> proposal_controls;
  if (item.params->proposer) {
    Controls own = OUTRIDER_TRY(
        Controls::Create(ProposalSampling(*item.params), item.params->prompt_length, limits_.vocab));
    proposal_controls = std::make_unique<Controls>(std::move(own));
  }
  entry.proposal_controls_ = std::move(proposal_controls);
  entry.controls_ = std::make_unique<Controls>(std::move(controls));
  entry.params_ = item.params;
  entry.params_hash_ = item.params_hash;
  return absl::OkStatus();
}

void SequenceStore::Start(SequenceState& entry, WorkItem item, uint64_t digest) {
  entry.prefix_cursor_.resize(
      std::min(entry.prefix_cursor_.size(), item.base / static_cast<size_t>(limits_.block_size)));
  entry.active_ = true;
  entry.started_ = false;
  entry.round_ = item.round;
  entry.digest_ = digest;
  entry.committed_ = entry.cache_.size();
  entry.logit_rows_ = 0;
  entry.branch_ = item.branch;
  entry.listeners_.clear();
  entry.listeners_.push_back(std::move(item.answer));
  entry.answer_ = Answer();
  entry.item_ = std::move(item);
  active_.push_back(&entry);
  // A sequence without computed tokens starts from the prefix cache. Its last token is always computed, for
  // its logits, and so are all tokens of a prompt that is scored.
  if (!options_.prefix_cache || entry.num_computed() > 0 || entry.prompt_logprobs() >= 0) return;
  const int limit = entry.committed_ - 1;
  PrefixIndex::Match match = prefixes_.Find(entry.cache_, limit, CacheSaltOf(entry.params()));
  entry.cache_.Adopt(match.blocks);
  entry.prefix_cursor_ = std::move(match.cursor);
  entry.answer_.prefix_hit = entry.num_computed();
  prefix_queried_ += limit;
  prefix_hit_ += entry.num_computed();
}

void SequenceStore::Release(const SequenceId& id) {
  SequenceState* entry = entries_.Find(id);
  if (entry != nullptr && entry->active_) Drop(*entry);
  if (entry != nullptr && entry->branch_) {
    // There are many branches, and a late item soon finds no origin. Remembering them would push out others.
    entries_.Erase(id);
  } else {
    entries_.Release(id);
  }
}

void SequenceStore::Drop(SequenceState& entry) {
  entry.active_ = false;
  entry.idle_since_ = absl::Now();
  entry.digest_ = 0;
  entry.listeners_.clear();
  DropProposal(entry);
  std::erase(active_, &entry);
}

void SequenceStore::Finish(SequenceState& sequence, absl::Status status) {
  std::erase(active_, &sequence);
  sequence.active_ = false;
  sequence.idle_since_ = absl::Now();
  Answer& answer = sequence.answer_;
  answer.status = std::move(status);
  if (!answer.status.ok()) {
    // A failed item changes nothing but the cache, and may be sent again.
    sequence.digest_ = 0;
    DropProposal(sequence);
  } else if (sequence.proposes_) {
    sequence.DropPending();
  } else if (answer.verdict != nullptr) {
    KeepPath(sequence);
  }
  sequence.proposes_ = false;
  // Branches come and go by the thousand: their blocks are for the next branch, not for the prefix index.
  if (options_.prefix_cache && !sequence.branch_ && sequence.num_computed() > 0) {
    prefixes_.Insert(sequence.cache_, std::min(sequence.committed_, sequence.num_computed()),
                     sequence.prefix_cursor_, CacheSaltOf(sequence.params()));
  }
  answer.num_computed = sequence.held();
  const absl::Time now = absl::Now();
  answer.timing.queue = (sequence.started_ ? sequence.started_at_ : now) - sequence.item_.received;
  answer.timing.compute = sequence.started_ ? now - sequence.started_at_ : absl::ZeroDuration();
  for (const auto& listener : std::exchange(sequence.listeners_, {})) listener(answer);
}

void SequenceStore::KeepPath(SequenceState& entry) {
  const std::vector<int>& path = entry.answer_.verdict->path;
  OUTRIDER_CHECK(Compact(entry, [&] { return entry.cache_.Keep(entry.committed_, path); }).ok());
}

// Keeps the drafted tokens. How far a draft got may depend on its tokens, so losing them would bias the
// draft.
void SequenceStore::FinishForLackOfRoom(SequenceState& entry) {
  const bool drafted = entry.answer_.next || !entry.answer_.proposal.empty();
  Finish(entry, drafted ? absl::OkStatus()
                        : MakeError(absl::StatusCode::kResourceExhausted, "KV_EXHAUSTED", "kv_exhausted"));
}

bool SequenceStore::BeginProposal(SequenceState& sequence, int slots) {
  KeepPath(sequence);
  sequence.proposes_ = true;
  sequence.committed_ = sequence.cache_.size();
  if (!ReserveFree(sequence, slots)) return false;
  sequence.Append(sequence.answer_.verdict->token);
  sequence.committed_ = sequence.cache_.size();
  return true;
}

bool SequenceStore::Reserve(SequenceState& sequence, int rows) {
  while (!ReserveFree(sequence, rows)) {
    if (sequence.branch_) {
      sequence.DropPending();
      FinishForLackOfRoom(sequence);
      return false;
    }
    if (PreemptFor(sequence)) continue;
    EvictCache(sequence);
    return false;
  }
  return true;
}

bool SequenceStore::ReserveFree(SequenceState& sequence, int rows) {
  const absl::StatusOr<std::vector<BlockCopy>> copies =
      sequence.cache_.Reserve(sequence.num_computed() + rows);
  if (!copies.ok()) return false;
  for (const BlockCopy& copy : *copies) copy_block_(copy.from, copy.to);
  return true;
}

// Evicts the cache of another sequence: of a branch, else of an abandoned one, else of the newest that
// arrived after `for_entry`, active or between two rounds. Old sequences therefore always make progress, and
// no two evict each other in turn. Returns false if there is no victim.
bool SequenceStore::PreemptFor(const SequenceState& for_entry) {
  SequenceState *branch = nullptr, *abandoned = nullptr, *newest = nullptr;
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
  entries_.ForEachOldestFirst([&](const SequenceId&, const SequenceState& entry) {
    for (BlockId block : entry.blocks()) ++references[static_cast<size_t>(block)];
    OUTRIDER_CHECK(entry.num_computed() <= entry.cache_.table().capacity());
    return true;
  });
  for (BlockId block = 0; block < pool_.num_blocks(); ++block) {
    OUTRIDER_CHECK(references[static_cast<size_t>(block)] == pool_.ref_count(block));
  }
}

}  // namespace outrider
