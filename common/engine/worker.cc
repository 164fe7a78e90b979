#include "common/engine/worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/engine/scheduler.h"
#include "common/kv/prefix_hash.h"

namespace outrider {
namespace {

// How often leases are looked at.
constexpr absl::Duration kLeaseCheck = absl::Seconds(1);

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
      pool_(runner_->kv_blocks()) {
  ReportState();
  thread_ = std::thread([this] { Run(); });
}

Worker::~Worker() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void Worker::Submit(WorkItem item) {
  item.received = absl::Now();
  Put(std::move(item));
}
void Worker::Release(const SequenceId& id) { Put(ReleaseCommand{id}); }
void Worker::Cancel(const SequenceId& id, uint64_t round) { Put(CancelCommand{id, round}); }

void Worker::Put(Command command) {
  absl::MutexLock lock(&mutex_);
  mailbox_.push_back(std::move(command));
}

bool Worker::TakeAll(absl::Time deadline, std::vector<Command>& commands) {
  absl::MutexLock lock(&mutex_);
  const auto ready = [this]()
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !mailbox_.empty(); };
  busy_ = !active_.empty();
  mutex_.AwaitWithDeadline(absl::Condition(&ready), deadline);
  commands.clear();
  commands.swap(mailbox_);
  busy_ |= !commands.empty();
  return !stopping_;
}

void Worker::AwaitIdle(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return mailbox_.empty() && !busy_; };
  mutex_.AwaitWithDeadline(absl::Condition(&idle), deadline);
}

void Worker::Run() {
  std::vector<Command> commands;
  absl::Time next_lease_check = absl::Now() + kLeaseCheck;
  while (TakeAll(active_.empty() ? next_lease_check : absl::InfinitePast(), commands)) {
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
    ReportState();
  }
  for (Session* session : std::vector<Session*>(active_)) {
    Finish(*session, absl::UnavailableError("stopping"));
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
  absl::StatusOr<Session*> found = FindOrCreate(item);
  if (!found.ok()) return refuse(found.status());
  Session& session = **found;
  sessions_.Touch(item.id, absl::Now());

  const uint64_t digest = Digest(item);
  if (session.digest != 0 || session.active) {
    if (item.round < session.round) return refuse(absl::AbortedError("round_stale"));
    if (item.round == session.round) {
      if (digest != session.digest) return refuse(absl::AbortedError("round_conflict"));
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
    superseded.status = absl::AbortedError("round_superseded");
    superseded.cached = session.cache.cached();
    for (const auto& listener : listeners) listener(superseded);
  }
  if (absl::Status status = Admit(session, item, digest); !status.ok()) {
    refuse(status);
    // A failed item changes nothing: one that would have begun a sequence leaves none.
    if (session.cache.size() == 0 && session.digest == 0) sessions_.Erase(item.id);
  }
}

absl::StatusOr<Session*> Worker::FindOrCreate(const WorkItem& item) {
  if (!item.invalid.ok()) return item.invalid;
  if (Session* session = sessions_.Find(item.id)) return session;
  if (item.base != 0 || sessions_.released(item.id)) return absl::NotFoundError("sequence_unknown");
  if (item.params == nullptr) return absl::FailedPreconditionError("params_unknown");
  if (static_cast<int>(sessions_.size()) >= options_.max_sequences) {
    // An idle one makes room; its coordinator sends it again when it needs it.
    SequenceId oldest;
    bool found = false;
    sessions_.ForEachOldestFirst([&](const SequenceId& id, const Session& session) {
      if (session.active) return true;
      oldest = id;
      found = true;
      return false;
    });
    if (!found) return absl::ResourceExhaustedError("sequences_exhausted");
    sessions_.Erase(oldest);
  }
  return sessions_.Insert(item.id, absl::Now(), item.id, &pool_, runner_->block_size());
}

absl::Status Worker::Admit(Session& session, WorkItem& item, uint64_t digest) {
  if (item.params == nullptr && item.params_hash != session.params_hash) {
    return absl::FailedPreconditionError("params_unknown");
  }
  const int context = runner_->config().max_position_embeddings;
  const size_t n = item.base + item.tokens.size();
  if (n + item.draft.size() > static_cast<size_t>(context)) {
    return absl::InvalidArgumentError(absl::StrCat("context_exceeded: ", n, " tokens and ", item.draft.size(),
                                                   " drafted; the context has ", context));
  }
  const int block_size = runner_->block_size();
  if (n + item.draft.size() > static_cast<size_t>(runner_->kv_blocks()) * block_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("cache_too_small: ", n, " tokens; the cache holds ", runner_->kv_blocks() * block_size));
  }
  if (item.prompt_logprobs >= 0 && item.base != 0) {
    return absl::InvalidArgumentError("prompt_logprobs_base: only with base 0");
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
  if (absl::Status status = decider_->Begin(session); !status.ok()) Finish(session, status);
  return absl::OkStatus();
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

void Worker::Step() {
  std::vector<WaitingRows> waiting;
  waiting.reserve(active_.size());
  for (const Session* session : active_) {
    waiting.push_back({session->cache.size() - session->cache.cached(), session->wanted});
  }
  const std::vector<int> plan = PlanStep(waiting, options_.max_batch_rows);

  // Blocks first: making room may end sessions, those of this plan included.
  std::vector<std::pair<Session*, int>> chosen;
  const std::vector<Session*> candidates = active_;
  for (size_t i = 0; i < plan.size(); ++i) {
    if (plan[i] > 0 && candidates[i]->active && Reserve(*candidates[i], plan[i])) {
      chosen.emplace_back(candidates[i], plan[i]);
    }
  }
  std::erase_if(chosen, [](const auto& entry) { return !entry.first->active; });
  if (chosen.empty()) return;

  StepStats stats;
  const absl::Time start = absl::Now();
  std::vector<SequenceRows> batch;
  for (const auto& [session, rows] : chosen) {
    const CachedSequence& cache = session->cache;
    const bool last = cache.cached() + rows == cache.size();
    const bool scored = session->item.prompt_logprobs >= 0;
    batch.push_back({cache.tokens().subspan(cache.cached(), rows), cache.cached(), cache.table().blocks(),
                     scored ? rows : (last ? session->wanted : 0)});
    stats.rows += rows;
    if (!session->begun) {
      session->begun = true;
      session->started = start;
    }
  }
  stats.sequences = static_cast<int>(batch.size());
  absl::StatusOr<LogitsView> logits = runner_->Forward(batch);
  stats.duration = absl::Now() - start;
  if (hooks_.on_step) hooks_.on_step(stats);

  int first_row = 0;
  for (size_t i = 0; i < chosen.size(); ++i) {
    const auto& [session, rows] = chosen[i];
    session->answer.timing.batch_sequences = stats.sequences;
    session->answer.timing.batch_rows = stats.rows;
    if (!logits.ok()) {
      Finish(*session, absl::InternalError(logits.status().message()));
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
    absl::StatusOr<bool> done =
        decider_->Decide(*session, {view.row(before).data(), session->wanted, view.vocab});
    if (!done.ok() || *done) Finish(*session, done.status());
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
    session.committed = 0;
    Finish(session, absl::ResourceExhaustedError("kv_exhausted"));
    return false;
  }
}

// Takes the cache of another sequence: of an idle one, the least recently used first; else of the newest of
// those that came after `for_session`. False if there is none.
bool Worker::Preempt(const Session& for_session) {
  Session* victim = nullptr;
  sessions_.ForEachOldestFirst([&](const SequenceId&, Session& session) {
    if (session.active || session.cache.table().blocks().empty()) return true;
    victim = &session;
    return false;
  });
  for (auto it = active_.rbegin(); victim == nullptr && it != active_.rend() && *it != &for_session; ++it) {
    if (!(*it)->cache.table().blocks().empty()) victim = *it;
  }
  if (victim == nullptr) return false;
  ++preemptions_;
  victim->cache.Reset();
  victim->committed = 0;
  if (victim->active) Finish(*victim, absl::ResourceExhaustedError("kv_exhausted"));
  return true;
}

void Worker::Finish(Session& session, absl::Status status) {
  std::erase(active_, &session);
  session.active = false;
  Answer& answer = session.answer;
  answer.status = std::move(status);
  if (!answer.status.ok()) {
    // A failed item changes nothing but the cache, and may be sent again.
    session.digest = 0;
    if (session.cache.size() > session.committed) session.cache.Truncate(session.committed);
  }
  answer.cached = session.cache.cached();
  const absl::Time now = absl::Now();
  answer.timing.queue = (session.begun ? session.started : now) - session.arrived;
  answer.timing.compute = session.begun ? now - session.started : absl::ZeroDuration();
  for (const auto& listener : std::exchange(session.listeners, {})) listener(answer);
}

void Worker::ReportState() {
  if (!hooks_.on_state) return;
  hooks_.on_state({static_cast<int>(sessions_.size()), static_cast<int>(active_.size()), pool_.num_used(),
                   pool_.num_blocks(), preemptions_});
}

}  // namespace outrider
