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

Worker::Worker(std::unique_ptr<Runner> runner, std::unique_ptr<Decider> decider, const WorkerOptions& options,
               Hooks hooks)
    : runner_(std::move(runner)),
      decider_(std::move(decider)),
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
      for (Session* session : active_) sessions_.Touch(session->id, now);
      sessions_.Expire(now, options_.lease);
    }
    EndExpired();
    if (!active_.empty()) Step();
    if (options_.check_invariants) CheckInvariants();
    ReportState();
  }
  for (Session* session : std::vector<Session*>(active_)) {
    Finish(*session, MakeError(absl::StatusCode::kUnavailable, "STOPPING", "stopping"));
  }
}

void Worker::Handle(const ReleaseCommand& command) {
  if (Session* session = sessions_.Find(command.id)) {
    if (session->active) Drop(*session);
  }
  sessions_.Release(command.id);
}

void Worker::Handle(const CancelCommand& command) {
  Session* session = sessions_.Find(command.id);
  if (session != nullptr && session->active && session->round == command.round) Drop(*session);
}

// Takes the item out without an answer and forgets what was drafted.
void Worker::Drop(Session& session) {
  session.active = false;
  session.idle_since = absl::Now();
  session.digest = 0;
  session.listeners.clear();
  if (session.cache.size() > session.committed) session.cache.Truncate(session.committed);
  std::erase(active_, &session);
}

void Worker::Handle(WorkItem item) {
  const auto refuse = [&](absl::Status status) {
    Answer answer;
    answer.status = std::move(status);
    if (Session* session = sessions_.Find(item.id)) answer.cached = session->cache.cached();
    item.answer(answer);
  };
  const bool is_new = sessions_.Find(item.id) == nullptr;
  absl::StatusOr<Session*> found = FindOrCreate(item);
  if (!found.ok()) return refuse(found.status());
  Session& session = **found;
  sessions_.Touch(item.id, absl::Now());

  const uint64_t digest = Digest(item);
  if (session.digest != 0 || session.active) {
    if (item.round < session.round)
      return refuse(MakeError(absl::StatusCode::kAborted, "ROUND_STALE", "round_stale"));
    if (item.round == session.round) {
      if (digest != session.digest)
        return refuse(MakeError(absl::StatusCode::kAborted, "ROUND_CONFLICT", "round_conflict"));
      if (session.active) {
        session.listeners.push_back(std::move(item.answer));
      } else {
        item.answer(session.answer);
      }
      return;
    }
  }
  if (session.active) {
    // A newer round: nobody waits for the old one any more.
    const auto listeners = std::move(session.listeners);
    Drop(session);
    Answer superseded;
    superseded.status = MakeError(absl::StatusCode::kAborted, "ROUND_SUPERSEDED", "round_superseded");
    superseded.cached = session.cache.cached();
    for (const auto& listener : listeners) listener(superseded);
  }
  if (absl::Status status = Admit(session, item, digest); !status.ok()) {
    refuse(status);
    // A failed item changes nothing: one that would have begun a sequence leaves none.
    if (is_new) sessions_.Erase(item.id);
  }
}

absl::StatusOr<Session*> Worker::FindOrCreate(const WorkItem& item) {
  if (!item.invalid.ok()) return item.invalid;
  if (Session* session = sessions_.Find(item.id)) return session;
  const auto unknown = [&] { return item.base != 0 && FindOrigin(item) == nullptr; };
  if (unknown() || sessions_.released(item.id)) return SequenceUnknown();
  if (item.params == nullptr) return ParamsUnknown();
  if (absl::Status status = MakeRoomForSequence(); !status.ok()) return status;
  // The origin itself may have had to make room.
  if (unknown()) return SequenceUnknown();
  Session* session = sessions_.Insert(item.id, absl::Now(), item.id, &pool_, runner_->block_size());
  session->number = ++last_number_;
  session->idle_since = absl::Now();
  if (item.base != 0) session->cache.Fork(FindOrigin(item)->cache, static_cast<int>(item.base));
  return session;
}

Session* Worker::FindOrigin(const WorkItem& item) {
  Session* origin = item.fork_of ? sessions_.Find(*item.fork_of) : nullptr;
  if (origin == nullptr || static_cast<int64_t>(item.base) > origin->cache.size()) return nullptr;
  return origin->cache.prefix_hash(static_cast<int>(item.base)) == item.prefix_hash ? origin : nullptr;
}

// An idle sequence goes if there are too many; its coordinator sends it again when it needs it.
absl::Status Worker::MakeRoomForSequence() {
  if (static_cast<int>(sessions_.size()) < options_.max_sequences) return absl::OkStatus();
  std::optional<SequenceId> oldest;
  sessions_.ForEachOldestFirst([&](const SequenceId& id, const Session& session) {
    if (!session.active) oldest = id;
    return session.active;
  });
  if (!oldest)
    return MakeError(absl::StatusCode::kResourceExhausted, "SEQUENCES_EXHAUSTED", "sequences_exhausted");
  sessions_.Erase(*oldest);
  return absl::OkStatus();
}

absl::Status Worker::Admit(Session& session, WorkItem& item, uint64_t digest) {
  if (item.params == nullptr && item.params_hash != session.params_hash) {
    return ParamsUnknown();
  }
  const int context = runner_->config().max_position_embeddings;
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
  if (item.params != nullptr && (item.params_hash != session.params_hash || session.controls == nullptr)) {
    absl::StatusOr<Controls> controls =
        Controls::Create(item.params->sampling, item.params->prompt_length, runner_->config().vocab_size);
    if (!controls.ok()) return controls.status();
    session.controls = std::make_unique<Controls>(*std::move(controls));
    session.params = item.params;
    session.params_hash = item.params_hash;
  }
  if (absl::Status status = session.cache.Reconcile(item.base, item.prefix_hash, item.tokens); !status.ok()) {
    return status;
  }
  session.indexed.resize(std::min(session.indexed.size(), item.base / static_cast<size_t>(block_size)));
  session.active = true;
  session.begun = false;
  session.round = item.round;
  session.digest = digest;
  session.committed = session.cache.size();
  session.arrived = item.received;
  session.listeners.clear();
  session.listeners.push_back(std::move(item.answer));
  session.answer = Answer();
  session.item = std::move(item);
  active_.push_back(&session);
  AdoptPrefix(session);
  if (absl::Status status = decider_->Begin(session); !status.ok()) Finish(session, status);
  return absl::OkStatus();
}

// A sequence of which nothing is cached begins with what others have left. Its last token is fed in any case,
// for its logits; tokens that are to be scored are fed all.
void Worker::AdoptPrefix(Session& session) {
  if (!options_.prefix_cache || session.cache.cached() > 0 || session.item.prompt_logprobs >= 0) return;
  const int limit = session.committed - 1;
  PrefixIndex::Match match = prefixes_.Find(session.cache, limit);
  session.cache.Adopt(match.blocks);
  session.indexed = std::move(match.cursor);
  session.answer.prefix_hit = session.cache.cached();
  prefix_queried_ += limit;
  prefix_hit_ += session.cache.cached();
}

void Worker::CheckInvariants() {
  OUTRIDER_CHECK(pool_.CheckInvariants().ok());
  std::vector<int> references(static_cast<size_t>(pool_.num_blocks()));
  sessions_.ForEachOldestFirst([&](const SequenceId&, const Session& session) {
    for (BlockId block : session.cache.table().blocks()) ++references[static_cast<size_t>(block)];
    OUTRIDER_CHECK(session.cache.cached() <= session.cache.table().capacity());
    return true;
  });
  for (BlockId block = 0; block < pool_.num_blocks(); ++block) {
    OUTRIDER_CHECK(references[static_cast<size_t>(block)] == pool_.ref_count(block));
  }
}

void Worker::EndExpired() {
  const bool any = std::any_of(active_.begin(), active_.end(),
                               [](const Session* s) { return s->item.deadline != absl::InfiniteFuture(); });
  if (!any) return;
  const absl::Time now = absl::Now();
  for (Session* session : std::vector<Session*>(active_)) {
    if (session->item.deadline > now) continue;
    std::optional<absl::Status> end = decider_->OnDeadline(*session);
    if (end.has_value()) {
      Finish(*session, *std::move(end));
    } else {
      session->item.deadline = absl::InfiniteFuture();
    }
  }
}

// Which sessions are part of the next step, with the blocks that they need.
std::vector<Worker::Part> Worker::ChooseParts() {
  std::vector<WaitingRows> waiting;
  waiting.reserve(active_.size());
  for (const Session* session : active_) {
    waiting.push_back({session->cache.size() - session->cache.cached(), session->wanted});
  }
  const std::vector<int> plan = PlanStep(waiting, options_.max_batch_rows);

  // Making room may end sessions, those of this plan included.
  std::vector<Part> parts;
  const std::vector<Session*> candidates = active_;
  for (size_t i = 0; i < plan.size(); ++i) {
    Session& session = *candidates[i];
    if (plan[i] == 0 || !session.active) continue;
    Part part{&session, plan[i], std::nullopt};
    const bool last = session.cache.cached() + plan[i] == session.cache.size();
    if (last && session.wanted > 0 && runner_->decides()) part.task = decider_->Delegate(session);
    const auto* propose = part.task ? std::get_if<ProposeTask>(&part.task->work) : nullptr;
    const int ahead = propose != nullptr ? propose->draft_tokens - 1 : 0;
    if (Reserve(session, plan[i] + ahead)) parts.push_back(std::move(part));
  }
  std::erase_if(parts, [](const Part& part) { return !part.session->active; });
  return parts;
}

void Worker::Step() {
  std::vector<Part> parts = ChooseParts();
  if (parts.empty()) return;

  StepStats stats;
  const absl::Time start = absl::Now();
  std::vector<SequenceRows> batch;
  for (Part& part : parts) {
    Session& session = *part.session;
    const CachedSequence& cache = session.cache;
    const bool last = cache.cached() + part.rows == cache.size();
    const bool scored = session.item.prompt_logprobs >= 0;
    batch.push_back({.tokens = cache.tokens().subspan(cache.cached(), part.rows),
                     .position = cache.cached(),
                     .blocks = cache.table().blocks(),
                     .logit_rows = scored ? part.rows : (last ? session.wanted : 0),
                     .task = part.task ? &*part.task : nullptr});
    stats.rows += part.rows;
    if (!session.begun) {
      session.begun = true;
      session.started = start;
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
    auto& [session, rows, task] = parts[i];
    session->answer.timing.batch_sequences = stats.sequences;
    session->answer.timing.batch_rows = stats.rows;
    if (!logits.ok()) {
      Finish(*session, absl::InternalError(logits.status().message()));
      continue;
    }
    if (task) {
      if (task->status.ok()) decider_->Conclude(*session, *task);
      session->cache.MarkCached(session->cache.size());
      Settle(*session, std::move(task->status));
      continue;
    }
    const LogitsView view{logits->row(first_row).data(), batch[i].logit_rows, logits->vocab};
    first_row += view.rows;
    if (session->item.prompt_logprobs >= 0) decider_->Score(*session, session->cache.cached(), view);
    session->cache.MarkCached(session->cache.cached() + rows);
    if (session->cache.cached() < session->cache.size()) continue;
    if (session->wanted == 0) {
      Finish(*session, absl::OkStatus());
      continue;
    }
    const int before = view.rows - session->wanted;
    decisions.push_back({session, {view.row(before).data(), session->wanted, view.vocab}});
  }
  DecideAll(decisions);
}

// The end of an item that was decided: what its verdict rejects is taken out of the cache.
void Worker::Settle(Session& session, absl::Status status) {
  if (status.ok() && session.answer.verdict != nullptr) {
    session.cache.Keep(session.committed, session.answer.verdict->path);
  }
  Finish(session, std::move(status));
}

// Sequences have nothing to do with each other, so that which thread decides for one changes nothing. But the
// pool of blocks is theirs together: it is left to the loop after.
void Worker::DecideAll(std::vector<Decision>& decisions) {
  const auto decide = [&](int i) {
    Decision& decision = decisions[static_cast<size_t>(i)];
    decision.done = decider_->Decide(*decision.session, decision.rows);
  };
  int64_t logits = 0;
  for (const Decision& decision : decisions) logits += int64_t{decision.rows.rows} * decision.rows.vocab;
  const int count = static_cast<int>(decisions.size());
  if (logits >= kParallelLogits) {
    runner_->ParallelFor(count, decide);
  } else {
    for (int i = 0; i < count; ++i) decide(i);
  }
  for (const auto& [session, rows, done] : decisions) {
    if (!done.ok() || *done) Settle(*session, done.status());
  }
}

// Backs the next `rows` tokens of the session with blocks, at the cost of others if need be. False if the
// session was ended for want of blocks.
bool Worker::Reserve(Session& session, int rows) {
  while (true) {
    absl::StatusOr<std::vector<BlockCopy>> copies = session.cache.Reserve(session.cache.cached() + rows);
    if (copies.ok()) {
      for (const BlockCopy& copy : *copies) runner_->CopyBlock(copy.from, copy.to);
      return true;
    }
    if (Preempt(session)) continue;
    ++preemptions_;
    session.cache.Reset();
    session.indexed.clear();
    session.committed = 0;
    Finish(session, KvExhausted());
    return false;
  }
}

// Takes the cache of another sequence: of one that was left alone for long, else of the newest, working or
// between two rounds, of those that came after `for_session`. So the oldest always get on, and no two take
// from each other in turn. False if there is none.
bool Worker::Preempt(const Session& for_session) {
  Session* abandoned = nullptr;
  Session* newest = nullptr;
  const absl::Time long_ago = absl::Now() - kAbandoned;
  sessions_.ForEachOldestFirst([&](const SequenceId&, Session& session) {
    if (&session == &for_session || session.cache.table().blocks().empty()) return true;
    if (!session.active && session.idle_since < long_ago) {
      abandoned = &session;
      return false;
    }
    if (session.number > for_session.number && (newest == nullptr || session.number > newest->number)) {
      newest = &session;
    }
    return true;
  });
  Session* const victim = abandoned != nullptr ? abandoned : newest;
  if (victim == nullptr) return false;
  ++preemptions_;
  victim->cache.Reset();
  victim->indexed.clear();
  victim->committed = 0;
  if (victim->active) Finish(*victim, KvExhausted());
  return true;
}

void Worker::Finish(Session& session, absl::Status status) {
  std::erase(active_, &session);
  session.active = false;
  session.idle_since = absl::Now();
  Answer& answer = session.answer;
  answer.status = std::move(status);
  if (!answer.status.ok()) {
    // A failed item changes nothing but the cache, and may be sent again.
    session.digest = 0;
    if (session.cache.size() > session.committed) session.cache.Truncate(session.committed);
  }
  if (options_.prefix_cache) {
    prefixes_.Insert(session.cache, std::min(session.committed, session.cache.cached()), session.indexed);
  }
  answer.cached = session.cache.cached();
  const absl::Time now = absl::Now();
  answer.timing.queue = (session.begun ? session.started : now) - session.arrived;
  answer.timing.compute = session.begun ? now - session.started : absl::ZeroDuration();
  for (const auto& listener : std::exchange(session.listeners, {})) listener(answer);
}

void Worker::ReportState() {
  if (!hooks_.on_state) return;
  hooks_.on_state({.sessions = static_cast<int>(sessions_.size()),
                   .waiting = static_cast<int>(active_.size()),
                   .blocks_used = pool_.num_used(),
                   .blocks_cached = pool_.num_cached(),
                   .blocks_free = pool_.num_free(),
                   .prefix_queried = prefix_queried_,
                   .prefix_hit = prefix_hit_,
                   .preemptions = preemptions_});
}

}  // namespace outrider
