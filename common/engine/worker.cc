#include "common/engine/worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/engine/scheduler.h"
#include "common/kv/prefix_hash.h"
#include "common/spec/check.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

// From this many logits on, deciding is shared among threads: waking one takes as long as a few thousand.
constexpr int64_t kParallelLogits = 1 << 16;
// A sequence that waits for its coordinator this long has been left alone: a round is much shorter.
constexpr absl::Duration kAbandoned = absl::Seconds(1);
// How often leases are looked at.
constexpr absl::Duration kLeaseCheck = absl::Seconds(1);

absl::Status SequenceUnknown() {
  return MakeError(absl::StatusCode::kNotFound, "SEQUENCE_UNKNOWN", "sequence_unknown");
}
absl::Status ParamsUnknown() {
  return MakeError(absl::StatusCode::kFailedPrecondition, "PARAMS_UNKNOWN", "params_unknown");
}
absl::Status KvExhausted() {
  return MakeError(absl::StatusCode::kResourceExhausted, "KV_EXHAUSTED", "kv_exhausted");
}

// What an item says, apart from how it says it: base and budget may differ when it is sent again.
uint64_t Digest(const WorkItem& item) {
  uint64_t hash = item.prefix_hash;
  for (TokenId token : item.tokens) hash = ExtendPrefixHash(hash, token);
  for (uint64_t part : {item.params_hash, item.content_hash, static_cast<uint64_t>(item.draft_tokens),
                        static_cast<uint64_t>(item.append_only), static_cast<uint64_t>(item.prompt_logprobs),
                        item.base + item.tokens.size()}) {
    hash = ExtendPrefixHash(hash, static_cast<TokenId>(part));
    hash = ExtendPrefixHash(hash, static_cast<TokenId>(part >> 32));
  }
  return hash | 1;  // 0 stands for none
}

}  // namespace

Worker::Worker(std::unique_ptr<Runner> runner, std::unique_ptr<Sampler> sampler, const WorkerOptions& options,
               Hooks hooks)
    : runner_(std::move(runner)),
      sampler_(std::move(sampler)),
      options_(options),
      hooks_(std::move(hooks)),
      pool_(runner_->kv_blocks()),
      prefixes_(&pool_, runner_->block_size()) {
  ReportState();
  thread_ = std::thread([this] { Run(); });
}

Worker::~Worker() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  arrived_.notify_one();
  thread_.join();
}

void Worker::Submit(WorkItem item) {
  item.received = absl::Now();
  Put(std::move(item));
  runner_->Wake();
}
void Worker::Release(const SequenceId& id) { Put(ReleaseCommand{id}); }
void Worker::Cancel(const SequenceId& id, uint64_t round) { Put(CancelCommand{id, round}); }

void Worker::Put(Command command) {
  {
    std::lock_guard lock(mutex_);
    mailbox_.push_back(std::move(command));
  }
  arrived_.notify_one();
}

bool Worker::TakeAll(absl::Time deadline, std::vector<Command>& commands) {
  std::unique_lock lock(mutex_);
  busy_ = !active_.empty();
  if (!busy_) {
    idle_.notify_all();
    arrived_.wait_until(lock, absl::ToChronoTime(deadline),
                        [this] { return stopping_ || !mailbox_.empty(); });
  }
  commands.clear();
  commands.swap(mailbox_);
  busy_ |= !commands.empty();
  return !stopping_;
}

void Worker::AwaitIdle(absl::Time deadline) {
  std::unique_lock lock(mutex_);
  idle_.wait_until(lock, absl::ToChronoTime(deadline), [this] { return mailbox_.empty() && !busy_; });
}

void Worker::Run() {
  std::vector<Command> commands;
  absl::Time next_lease_check = absl::Now() + kLeaseCheck;
  while (TakeAll(next_lease_check, commands)) {
    for (Command& command : commands) {
      std::visit([this](auto& c) { Handle(std::move(c)); }, command);
    }
    if (const absl::Time now = absl::Now(); now >= next_lease_check) {
      next_lease_check = now + kLeaseCheck;
      for (SequenceState* sequence : active_) sequences_.Touch(sequence->id, now);
      sequences_.Expire(now, options_.lease);
    }
    EndExpired();
    if (!active_.empty()) Step();
    if (options_.check_invariants) CheckInvariants();
    ReportState();
  }
  for (SequenceState* sequence : std::vector<SequenceState*>(active_)) {
    Finish(*sequence, MakeError(absl::StatusCode::kUnavailable, "STOPPING", "stopping"));
  }
}

void Worker::Handle(const ReleaseCommand& command) {
  if (SequenceState* sequence = sequences_.Find(command.id)) {
    if (sequence->active) Drop(*sequence);
  }
  sequences_.Release(command.id);
}

void Worker::Handle(const CancelCommand& command) {
  SequenceState* sequence = sequences_.Find(command.id);
  if (sequence != nullptr && sequence->active && sequence->round == command.round) Drop(*sequence);
}

// Takes the item out without an answer and forgets what was drafted.
void Worker::Drop(SequenceState& sequence) {
  sequence.active = false;
  sequence.idle_since = absl::Now();
  sequence.digest = 0;
  sequence.listeners.clear();
  if (sequence.cache.size() > sequence.committed) sequence.cache.Truncate(sequence.committed);
  std::erase(active_, &sequence);
}

void Worker::Handle(WorkItem item) {
  const auto refuse = [&](absl::Status status) {
    Answer answer;
    answer.status = std::move(status);
    if (SequenceState* sequence = sequences_.Find(item.id))
      answer.num_computed = sequence->cache.num_computed();
    item.answer(answer);
  };
  const bool is_new = sequences_.Find(item.id) == nullptr;
  absl::StatusOr<SequenceState*> found = FindOrCreate(item);
  if (!found.ok()) return refuse(found.status());
  SequenceState& sequence = **found;
  sequences_.Touch(item.id, absl::Now());

  const uint64_t digest = Digest(item);
  if (sequence.digest != 0 || sequence.active) {
    if (item.round < sequence.round)
      return refuse(MakeError(absl::StatusCode::kAborted, "ROUND_STALE", "round_stale"));
    if (item.round == sequence.round) {
      if (digest != sequence.digest)
        return refuse(MakeError(absl::StatusCode::kAborted, "ROUND_CONFLICT", "round_conflict"));
      if (sequence.active) {
        sequence.listeners.push_back(std::move(item.answer));
      } else {
        item.answer(sequence.answer);
      }
      return;
    }
  }
  if (sequence.active) {
    // A newer round: nobody waits for the old one any more.
    const auto listeners = std::move(sequence.listeners);
    Drop(sequence);
    Answer superseded;
    superseded.status = MakeError(absl::StatusCode::kAborted, "ROUND_SUPERSEDED", "round_superseded");
    superseded.num_computed = sequence.cache.num_computed();
    for (const auto& listener : listeners) listener(superseded);
  }
  if (absl::Status status = Admit(sequence, item, digest); !status.ok()) {
    refuse(status);
    // A failed item changes nothing: one that would have begun a sequence leaves none.
    if (is_new) sequences_.Erase(item.id);
  }
}

absl::StatusOr<SequenceState*> Worker::FindOrCreate(const WorkItem& item) {
  if (!item.invalid.ok()) return item.invalid;
  if (SequenceState* sequence = sequences_.Find(item.id)) return sequence;
  const auto unknown = [&] { return item.base != 0 && FindOrigin(item) == nullptr; };
  if (unknown() || sequences_.released(item.id)) return SequenceUnknown();
  if (item.params == nullptr) return ParamsUnknown();
  if (absl::Status status = MakeRoomForSequence(); !status.ok()) return status;
  // The origin itself may have had to make room.
  if (unknown()) return SequenceUnknown();
  SequenceState* sequence = sequences_.Insert(item.id, absl::Now(), item.id, &pool_, runner_->block_size());
  sequence->number = ++last_number_;
  sequence->idle_since = absl::Now();
  if (item.base != 0) sequence->cache.Fork(FindOrigin(item)->cache, static_cast<int>(item.base));
  return sequence;
}

SequenceState* Worker::FindOrigin(const WorkItem& item) {
  SequenceState* origin = item.fork_of ? sequences_.Find(*item.fork_of) : nullptr;
  if (origin == nullptr || static_cast<int64_t>(item.base) > origin->cache.size()) return nullptr;
  return origin->cache.prefix_hash(static_cast<int>(item.base)) == item.prefix_hash ? origin : nullptr;
}

// An idle sequence goes if there are too many; its coordinator sends it again when it needs it.
absl::Status Worker::MakeRoomForSequence() {
  if (static_cast<int>(sequences_.size()) < options_.max_sequences) return absl::OkStatus();
  std::optional<SequenceId> oldest;
  sequences_.ForEachOldestFirst([&](const SequenceId& id, const SequenceState& sequence) {
    if (!sequence.active) oldest = id;
    return sequence.active;
  });
  if (!oldest)
    return MakeError(absl::StatusCode::kResourceExhausted, "SEQUENCES_EXHAUSTED", "sequences_exhausted");
  sequences_.Erase(*oldest);
  return absl::OkStatus();
}

absl::Status Worker::Admit(SequenceState& sequence, WorkItem& item, uint64_t digest) {
  if (item.params == nullptr && item.params_hash != sequence.params_hash) {
    return ParamsUnknown();
  }
  const int context = runner_->config().decoder.max_position_embeddings;
  const size_t n = item.base + item.tokens.size();
  if (n + item.draft.size() > static_cast<size_t>(context)) {
    return MakeError(absl::StatusCode::kInvalidArgument, "CONTEXT_EXCEEDED",
                     absl::StrCat("context_exceeded: ", n, " tokens and ", item.draft.size(),
                                  " drafted; the context has ", context));
  }
  const int block_size = runner_->block_size();
  if (n + item.draft.size() > static_cast<size_t>(runner_->kv_blocks()) * block_size) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, "CACHE_TOO_SMALL",
        absl::StrCat("cache_too_small: ", n, " tokens; the cache holds ", runner_->kv_blocks() * block_size));
  }
  if (item.prompt_logprobs >= 0 && item.base != 0) {
    return MakeError(absl::StatusCode::kInvalidArgument, "PROMPT_LOGPROBS_BASE",
                     "prompt_logprobs_base: only with base 0");
  }
  if (item.params != nullptr && (item.params_hash != sequence.params_hash || sequence.controls == nullptr)) {
    absl::StatusOr<Controls> controls = Controls::Create(item.params->sampling, item.params->prompt_length,
                                                         runner_->config().decoder.vocab_size);
    if (!controls.ok()) return controls.status();
    sequence.controls = std::make_unique<Controls>(*std::move(controls));
    sequence.params = item.params;
    sequence.params_hash = item.params_hash;
  }
  if (absl::Status status = sequence.cache.Reconcile(item.base, item.prefix_hash, item.tokens);
      !status.ok()) {
    return status;
  }
  sequence.indexed.resize(std::min(sequence.indexed.size(), item.base / static_cast<size_t>(block_size)));
  sequence.active = true;
  sequence.begun = false;
  sequence.round = item.round;
  sequence.digest = digest;
  sequence.committed = sequence.cache.size();
  sequence.arrived = item.received;
  sequence.listeners.clear();
  sequence.listeners.push_back(std::move(item.answer));
  sequence.answer = Answer();
  sequence.item = std::move(item);
  active_.push_back(&sequence);
  AdoptPrefix(sequence);
  if (absl::Status status = sampler_->Begin(sequence); !status.ok()) Finish(sequence, status);
  return absl::OkStatus();
}

// A sequence of which nothing is cached begins with what others have left. Its last token is fed in any case,
// for its logits; tokens that are to be scored are fed all.
void Worker::AdoptPrefix(SequenceState& sequence) {
  if (!options_.prefix_cache || sequence.cache.num_computed() > 0 || sequence.item.prompt_logprobs >= 0)
    return;
  const int limit = sequence.committed - 1;
  PrefixIndex::Match match = prefixes_.Find(sequence.cache, limit);
  sequence.cache.Adopt(match.blocks);
  sequence.indexed = std::move(match.cursor);
  sequence.answer.prefix_hit = sequence.cache.num_computed();
  prefix_queried_ += limit;
  prefix_hit_ += sequence.cache.num_computed();
}

void Worker::CheckInvariants() {
  OUTRIDER_CHECK(pool_.CheckInvariants().ok());
  std::vector<int> references(static_cast<size_t>(pool_.num_blocks()));
  sequences_.ForEachOldestFirst([&](const SequenceId&, const SequenceState& sequence) {
    for (BlockId block : sequence.cache.table().blocks()) ++references[static_cast<size_t>(block)];
    OUTRIDER_CHECK(sequence.cache.num_computed() <= sequence.cache.table().capacity());
    return true;
  });
  for (BlockId block = 0; block < pool_.num_blocks(); ++block) {
    OUTRIDER_CHECK(references[static_cast<size_t>(block)] == pool_.ref_count(block));
  }
}

void Worker::EndExpired() {
  const bool any = std::any_of(active_.begin(), active_.end(), [](const SequenceState* s) {
    return s->item.deadline != absl::InfiniteFuture();
  });
  if (!any) return;
  const absl::Time now = absl::Now();
  for (SequenceState* sequence : std::vector<SequenceState*>(active_)) {
    if (sequence->item.deadline > now) continue;
    std::optional<absl::Status> end = sampler_->OnDeadline(*sequence);
    if (end.has_value()) {
      Finish(*sequence, *std::move(end));
    } else {
      sequence->item.deadline = absl::InfiniteFuture();
    }
  }
}

// Which sessions are part of the next step, with the blocks that they need.
std::vector<Worker::Part> Worker::ChooseParts() {
  std::vector<WaitingRows> waiting;
  waiting.reserve(active_.size());
  for (const SequenceState* sequence : active_) {
    waiting.push_back({sequence->cache.size() - sequence->cache.num_computed(), sequence->logit_rows});
  }
  const std::vector<int> plan = PlanStep(waiting, options_.max_batch_rows);

  // Making room may end sessions, those of this plan included.
  std::vector<Part> parts;
  const std::vector<SequenceState*> candidates = active_;
  for (size_t i = 0; i < plan.size(); ++i) {
    SequenceState& sequence = *candidates[i];
    if (plan[i] == 0 || !sequence.active) continue;
    Part part{&sequence, plan[i], std::nullopt};
    const bool last = sequence.cache.num_computed() + plan[i] == sequence.cache.size();
    if (last && sequence.logit_rows > 0) part.task = sampler_->MakeDeviceTask(sequence);
    if (part.task.has_value() && !runner_->CanRun(*part.task)) part.task.reset();
    const auto* propose = part.task ? std::get_if<ProposeTask>(&part.task->work) : nullptr;
    const int ahead = propose != nullptr ? propose->draft_tokens - 1 : 0;
    if (Reserve(sequence, plan[i] + ahead)) parts.push_back(std::move(part));
  }
  std::erase_if(parts, [](const Part& part) { return !part.sequence->active; });
  return parts;
}

void Worker::Step() {
  std::vector<Part> parts = ChooseParts();
  if (parts.empty()) return;

  StepStats stats;
  const absl::Time start = absl::Now();
  std::vector<SequenceRows> batch;
  for (Part& part : parts) {
    SequenceState& sequence = *part.sequence;
    const CachedSequence& cache = sequence.cache;
    const bool last = cache.num_computed() + part.rows == cache.size();
    const bool scored = sequence.item.prompt_logprobs >= 0;
    batch.push_back({.tokens = cache.tokens().subspan(cache.num_computed(), part.rows),
                     .position = cache.num_computed(),
                     .blocks = cache.table().blocks(),
                     .logit_rows = scored ? part.rows : (last ? sequence.logit_rows : 0),
                     .task = part.task ? &*part.task : nullptr});
    stats.rows += part.rows;
    if (!sequence.begun) {
      sequence.begun = true;
      sequence.started = start;
    }
  }
  stats.sequences = static_cast<int>(batch.size());
  absl::StatusOr<LogitsView> logits = runner_->Forward(batch);
  stats.duration = absl::Now() - start;
  if (hooks_.on_step) hooks_.on_step(stats);
  // An invalid batch is a defect of this program and concerns its items only.
  if (!logits.ok() && !absl::IsInvalidArgument(logits.status()) && hooks_.on_failure) {
    hooks_.on_failure(logits.status());
  }

  std::vector<Decision> decisions;
  int first_row = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    auto& [sequence, rows, task] = parts[i];
    sequence->answer.timing.batch_sequences = stats.sequences;
    sequence->answer.timing.batch_rows = stats.rows;
    if (!logits.ok()) {
      Finish(*sequence, absl::InternalError(logits.status().message()));
      continue;
    }
    if (task) {
      if (task->status.ok()) sampler_->TakeDeviceResult(*sequence, *task);
      sequence->cache.MarkComputed(sequence->cache.size());
      Settle(*sequence, std::move(task->status));
      continue;
    }
    const LogitsView view{logits->row(first_row).data(), batch[i].logit_rows, logits->vocab};
    first_row += view.rows;
    if (sequence->item.prompt_logprobs >= 0) sampler_->Score(*sequence, sequence->cache.num_computed(), view);
    sequence->cache.MarkComputed(sequence->cache.num_computed() + rows);
    if (sequence->cache.num_computed() < sequence->cache.size()) continue;
    if (sequence->logit_rows == 0) {
      Finish(*sequence, absl::OkStatus());
      continue;
    }
    const int before = view.rows - sequence->logit_rows;
    decisions.push_back({sequence, {view.row(before).data(), sequence->logit_rows, view.vocab}});
  }
  DecideAll(decisions);
}

// The end of an item that was decided: what its verdict rejects is taken out of the cache.
void Worker::Settle(SequenceState& sequence, absl::Status status) {
  if (status.ok() && sequence.answer.verdict != nullptr) {
    sequence.cache.Keep(sequence.committed, sequence.answer.verdict->path);
  }
  Finish(sequence, std::move(status));
}

// Sequences have nothing to do with each other, so that which thread decides for one changes nothing. But the
// pool of blocks is theirs together: it is left to the loop after.
void Worker::DecideAll(std::vector<Decision>& decisions) {
  const auto decide = [&](int i) {
    Decision& decision = decisions[static_cast<size_t>(i)];
    decision.done = sampler_->Decide(*decision.sequence, decision.rows);
  };
  int64_t logits = 0;
  for (const Decision& decision : decisions) logits += int64_t{decision.rows.rows} * decision.rows.vocab;
  const int count = static_cast<int>(decisions.size());
  if (logits >= kParallelLogits) {
    runner_->ParallelFor(count, decide);
  } else {
    for (int i = 0; i < count; ++i) decide(i);
  }
  for (const auto& [sequence, rows, done] : decisions) {
    if (!done.ok() || *done) Settle(*sequence, done.status());
  }
}

// Backs the next `rows` tokens of the sequence with blocks, at the cost of others if need be. False if the
// sequence was ended for want of blocks.
bool Worker::Reserve(SequenceState& sequence, int rows) {
  while (true) {
    absl::StatusOr<std::vector<BlockCopy>> copies =
        sequence.cache.Reserve(sequence.cache.num_computed() + rows);
    if (copies.ok()) {
      for (const BlockCopy& copy : *copies) runner_->CopyBlock(copy.from, copy.to);
      return true;
    }
    if (Preempt(sequence)) continue;
    ++preemptions_;
    sequence.cache.Reset();
    sequence.indexed.clear();
    sequence.committed = 0;
    Finish(sequence, KvExhausted());
    return false;
  }
}

// Takes the cache of another sequence: of one that was left alone for long, else of the newest, working or
// between two rounds, of those that came after `for_session`. So the oldest always get on, and no two take
// from each other in turn. False if there is none.
bool Worker::Preempt(const SequenceState& for_session) {
  SequenceState* abandoned = nullptr;
  SequenceState* newest = nullptr;
  const absl::Time long_ago = absl::Now() - kAbandoned;
  sequences_.ForEachOldestFirst([&](const SequenceId&, SequenceState& sequence) {
    if (&sequence == &for_session || sequence.cache.table().blocks().empty()) return true;
    if (!sequence.active && sequence.idle_since < long_ago) {
      abandoned = &sequence;
      return false;
    }
    if (sequence.number > for_session.number && (newest == nullptr || sequence.number > newest->number)) {
      newest = &sequence;
    }
    return true;
  });
  SequenceState* const victim = abandoned != nullptr ? abandoned : newest;
  if (victim == nullptr) return false;
  ++preemptions_;
  victim->cache.Reset();
  victim->indexed.clear();
  victim->committed = 0;
  if (victim->active) Finish(*victim, KvExhausted());
  return true;
}

void Worker::Finish(SequenceState& sequence, absl::Status status) {
  std::erase(active_, &sequence);
  sequence.active = false;
  sequence.idle_since = absl::Now();
  Answer& answer = sequence.answer;
  answer.status = std::move(status);
  if (!answer.status.ok()) {
    // A failed item changes nothing but the cache, and may be sent again.
    sequence.digest = 0;
    if (sequence.cache.size() > sequence.committed) sequence.cache.Truncate(sequence.committed);
  }
  if (options_.prefix_cache) {
    prefixes_.Insert(sequence.cache, std::min(sequence.committed, sequence.cache.num_computed()),
                     sequence.indexed);
  }
  answer.num_computed = sequence.cache.num_computed();
  const absl::Time now = absl::Now();
  answer.timing.queue = (sequence.begun ? sequence.started : now) - sequence.arrived;
  answer.timing.compute = sequence.begun ? now - sequence.started : absl::ZeroDuration();
  for (const auto& listener : std::exchange(sequence.listeners, {})) listener(answer);
}

void Worker::ReportState() {
  if (!hooks_.on_state) return;
  hooks_.on_state({.sessions = static_cast<int>(sequences_.size()),
                   .waiting = static_cast<int>(active_.size()),
                   .blocks_used = pool_.num_used(),
                   .blocks_cached = pool_.num_cached(),
                   .blocks_free = pool_.num_free(),
                   .prefix_queried = prefix_queried_,
                   .prefix_hit = prefix_hit_,
                   .preemptions = preemptions_});
}

}  // namespace outrider
