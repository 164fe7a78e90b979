#include "common/engine/worker.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/time/clock.h"
#include "common/engine/proposers/proposer.h"
#include "common/engine/scheduler.h"
#include "common/spec/status.h"
#include "common/spec/tree_shape.h"

namespace outrider {
namespace {

// Sampling this many logits or more is spread over threads: waking a thread costs as much as sampling a few
// thousand.
constexpr int64_t kParallelLogits = 1 << 16;
// Items that may wait per allowed sequence. A sender has one item in flight per sequence, so more than one
// means that several senders ask for more sequences than are allowed.
constexpr size_t kWaitingPerSequence = 4;
// How often leases are checked.
constexpr absl::Duration kLeaseCheck = absl::Seconds(1);

// A sequence with a verdict, after which the target is to propose.
struct VerdictToFollow {
  SequenceState* sequence = nullptr;
  // The HiddenView row that the verdict's token was drawn from, if its proposer wants it. A copy, since
  // drafting for other sequences overwrites the step's results.
  std::vector<float> hidden = {};
};

// The proposer that the sequence's parameters name; null if there is none, or if the item in progress is
// ProposeWork.
Proposer* ProposerOf(const Runner& runner, const SequenceState& sequence) {
  const std::optional<ProposerKind> kind = sequence.params().proposer;
  const bool verifies = !std::holds_alternative<ProposeWork>(sequence.work());
  return kind && verifies ? runner.proposer(*kind) : nullptr;
}

// The request, limited to what proposer and context allow.
ProposalRequest Bounded(const VerdictToFollow& verdict, const Proposer& proposer, const Runner& runner) {
  const SequenceState& sequence = *verdict.sequence;
  ProposalRequest request = *sequence.work_as<VerifyWork>().propose;
  const int committed = sequence.committed() + static_cast<int>(sequence.answer().verdict->path.size()) + 1;
  // The token that follows the proposal must fit the context too.
  const int room = runner.config().decoder.max_position_embeddings - committed - 1;
  request.draft_tokens = std::min({request.draft_tokens, proposer.max_tokens(), room});
  return request;
}

absl::Status ProposeTogether(Proposer& proposer, std::span<Drafting> draftings) {
  const absl::Time start = absl::Now();
  const absl::Status status = MakeProposals(proposer, draftings);
  const absl::Duration took = absl::Now() - start;
  for (Drafting& drafting : draftings) drafting.sequence->answer().timing.propose = took;
  return status;
}

// Fills in the answers' proposals, which stay empty where the context or the cache has no room. Sequences
// with the same proposer draft together. An error means that the device failed.
absl::Status ProposeAfter(std::span<const VerdictToFollow> verdicts, Runner& runner, SequenceStore& store) {
  const int most_rows = std::min(runner.max_batch_rows(), kMaxLogitRows);
  for (const std::unique_ptr<Proposer>& proposer : runner.proposers()) {
    std::vector<Drafting> draftings;
    int rows = 0;
    for (const VerdictToFollow& verdict : verdicts) {
      SequenceState& sequence = *verdict.sequence;
      if (ProposerOf(runner, sequence) != proposer.get()) continue;
      const ProposalRequest request = Bounded(verdict, *proposer, runner);
      const int nodes = request.tree ? MaxNodes(*request.tree, request.draft_tokens) : request.draft_tokens;
      if (request.draft_tokens < 1 || 1 + nodes > most_rows) continue;
      if (!store.BeginProposal(sequence, proposer->SlotsFor(nodes, request.draft_tokens))) continue;
      if (rows + 1 + nodes > most_rows) {
        OUTRIDER_TRY(ProposeTogether(*proposer, draftings));
        draftings.clear();
        rows = 0;
      }
      rows += 1 + nodes;
      draftings.push_back({.sequence = &sequence, .request = request, .hidden = verdict.hidden});
    }
    OUTRIDER_TRY(ProposeTogether(*proposer, draftings));
  }
  return absl::OkStatus();
}

}  // namespace

Worker::Worker(std::unique_ptr<Runner> runner, std::unique_ptr<Sampler> sampler, const WorkerOptions& options,
               Hooks hooks, CommandSource source)
    : runner_(std::move(runner)),
      sampler_(std::move(sampler)),
      options_(options),
      hooks_(std::move(hooks)),
      source_(std::move(source)),
      mailbox_(kWaitingPerSequence * static_cast<size_t>(options.sequences.max_sequences), source_),
      store_(
          {.context = runner_->config().decoder.max_position_embeddings,
           .vocab = runner_->config().decoder.vocab_size,
           .kv_blocks = runner_->kv_blocks(),
           .block_size = runner_->block_size()},
          options.sequences, [this](BlockId from, BlockId to) { runner_->CopyBlock(from, to); },
          [this](std::span<const BlockId> blocks, std::span<const SlotMove> moves) {
            runner_->MoveSlots(blocks, moves);
          }) {
  ReportState();
  thread_ = std::thread([this] { Run(); });
}

Worker::~Worker() {
  mailbox_.Stop();
  thread_.join();
}

void Worker::Submit(WorkItem item) {
  item.received = absl::Now();
  CountItems(1);  // first, since the engine may finish it before this thread goes on
  const Mailbox::Outcome outcome = mailbox_.PutItem(item);
  if (outcome == Mailbox::Outcome::kTaken) return runner_->Wake();
  CountItems(-1);
  if (outcome == Mailbox::Outcome::kClosedAgain) return;
  // Reports the sender's own number of computed tokens, which nobody has checked.
  item.answer(Refusal(
      outcome == Mailbox::Outcome::kFull
          ? MakeError(absl::StatusCode::kResourceExhausted, "SERVER_BUSY", "server_busy: too many items wait")
          : MakeError(absl::StatusCode::kUnavailable, "DRAINING", "draining: the server takes no new items"),
      static_cast<int>(item.base)));
}

void Worker::Run() {
  std::vector<Command> commands;
  absl::Time next_lease_check = absl::Now() + kLeaseCheck;
  absl::Time wait_until = absl::InfiniteFuture();
  while (mailbox_.Take(/*busy=*/!store_.active().empty(), std::min(wait_until, next_lease_check), commands)) {
    iterations_.fetch_add(1, std::memory_order_relaxed);
    for (Command& command : commands) {
      if (auto* const item = std::get_if<WorkItem>(&command)) {
        ++items_;
        gather_.OnItem(item->id, absl::Now());
        if (SequenceState* const sequence = store_.Admit(std::move(*item))) sampler_->Begin(*sequence);
      } else {
        std::get<1>(command)(store_);
      }
    }
    if (const absl::Time now = absl::Now(); now >= next_lease_check) {
      next_lease_check = now + kLeaseCheck;
      store_.ExpireLeases(now);
    }
    EndExpired();
    wait_until = StepOrWait();
    if (options_.check_invariants) store_.CheckInvariants();
    ReportState();
  }
  for (SequenceState* sequence : std::vector<SequenceState*>(store_.active())) {
    store_.Finish(*sequence, MakeError(absl::StatusCode::kUnavailable, "STOPPING", "stopping"));
  }
}

void Worker::EndExpired() {
  const std::vector<SequenceState*>& active = store_.active();
  const bool any = std::ranges::any_of(
      active, [](const SequenceState* sequence) { return sequence->deadline() != absl::InfiniteFuture(); });
  if (!any) return;
  const absl::Time now = absl::Now();
  for (SequenceState* sequence : std::vector<SequenceState*>(active)) {
    if (sequence->deadline() > now) continue;
    if (std::optional<absl::Status> end = sampler_->OnDeadline(*sequence)) {
      store_.Finish(*sequence, *std::move(end));
    } else {
      sequence->ClearDeadline();
    }
  }
}

absl::Time Worker::StepOrWait() {
  if (store_.active().empty()) return absl::InfiniteFuture();
  int rows = 0;
  for (const SequenceState* sequence : store_.active()) {
    if (!sequence->branch()) rows += sequence->num_pending();
  }
  if (rows > 0) {
    const absl::Time now = absl::Now();
    const absl::Time at = gather_.StepAt(std::min(rows, options_.max_batch_rows), step_time_, now);
    if (at > now) return at;
  }
  Step();
  return store_.active().empty() ? absl::InfiniteFuture() : absl::InfinitePast();
}

void Worker::Step() {
  std::vector<ScheduledSequence> scheduled = Schedule();
  if (scheduled.empty()) return;
  ReportState();
  const absl::StatusOr<LogitsView> logits = RunModel(scheduled);
  if (logits.ok()) {
    // Send the answers in one message, so that the reader has all of them for the next step.
    if (source_.hold_answers) source_.hold_answers();
    Postprocess(scheduled, *logits);
    if (source_.release_answers) source_.release_answers();
    for (const ScheduledSequence& s : scheduled) {
      const bool returns = !s.sequence->active() && !s.sequence->branch();
      if (returns) gather_.OnAnswer(s.sequence->id(), s.logit_rows, absl::Now());
    }
    return;
  }

  ReportIfLost(logits.status());
  for (const ScheduledSequence& s : scheduled) {
    store_.Finish(*s.sequence, absl::InternalError(logits.status().message()));
  }
}

// Selects the sequences of the next step and reserves the blocks that they need.
std::vector<Worker::ScheduledSequence> Worker::Schedule() {
  const std::vector<SequenceState*> candidates = store_.active();
  std::vector<PendingRows> pending;
  pending.reserve(candidates.size());
  int decoding = 0;  // rows
  for (const SequenceState* sequence : candidates) {
    pending.push_back({sequence->num_pending(), sequence->logit_rows(), sequence->prompt_logprobs() >= 0,
                       sequence->branch()});
    if (!IsPrefill(pending.back()) && !sequence->branch()) decoding += sequence->num_pending();
  }
  const int prefill_rows = prompt_pace_.MostRows(decoding, options_.max_batch_rows, step_time_, absl::Now());
  const std::vector<int> plan = PlanStep(pending, {options_.max_batch_rows, kMaxLogitRows, prefill_rows});

  std::vector<ScheduledSequence> scheduled;
  for (size_t i = 0; i < plan.size(); ++i) {
    SequenceState& sequence = *candidates[i];
    // Making room for one sequence may have ended the work of another.
    if (plan[i] == 0 || !sequence.active()) continue;
    const bool last = plan[i] == sequence.num_pending();
    const int logit_rows = sequence.prompt_logprobs() >= 0 ? plan[i] : last ? sequence.logit_rows() : 0;
    ScheduledSequence part{&sequence, plan[i], logit_rows, std::nullopt};
    if (last && sequence.logit_rows() > 0 && sequence.parents().empty())
      part.task = sampler_->MakeDeviceTask(sequence);
    if (part.task && !runner_->CanRun(*part.task)) part.task.reset();
    const auto* propose = part.task ? std::get_if<ProposeTask>(&part.task->work) : nullptr;
    const int ahead = propose != nullptr ? propose->draft_tokens - 1 : 0;
    if (store_.Reserve(sequence, plan[i] + ahead)) scheduled.push_back(std::move(part));
  }
  std::erase_if(scheduled, [](const ScheduledSequence& s) { return !s.sequence->active(); });
  return scheduled;
}

absl::StatusOr<LogitsView> Worker::RunModel(std::vector<ScheduledSequence>& scheduled) {
  std::vector<SequenceRows> batch;
  batch.reserve(scheduled.size());
  PassOptions pass;
  StepStats stats;
  stats.sequences = static_cast<int>(scheduled.size());
  for (ScheduledSequence& s : scheduled) {
    const size_t first = static_cast<size_t>(s.sequence->num_computed());
    batch.push_back({.tokens = s.sequence->tokens().subspan(first, static_cast<size_t>(s.rows)),
                     .position = s.sequence->num_computed(),
                     .blocks = s.sequence->blocks(),
                     .logit_rows = s.logit_rows,
                     .task = s.task ? &*s.task : nullptr});
    if (std::holds_alternative<ProposeWork>(s.sequence->work())) {
      batch.back().text = s.sequence->tokens().first(static_cast<size_t>(s.sequence->committed()));
    }
    if (const Proposer* proposer = ProposerOf(*runner_, *s.sequence)) {
      s.hidden_rows = proposer->HiddenRows(s.rows, s.logit_rows);
      batch.back().hidden_rows = s.hidden_rows;
      if (s.hidden_rows > 0 && !proposer->taps().empty()) pass.taps = proposer->taps();
    }
    // A chunk of the prompt before a tree is a chain.
    const int nodes = s.sequence->num_computed() + s.rows - s.sequence->tree_begin();
    if (nodes > 0) {
      batch.back().tree_begin = s.sequence->tree_begin();
      batch.back().parents = s.sequence->parents().first(static_cast<size_t>(nodes));
    }
    stats.rows += s.rows;
  }
  const absl::Time start = absl::Now();
  for (const ScheduledSequence& s : scheduled) s.sequence->OnStep(start, stats.sequences, stats.rows);
  absl::StatusOr<LogitsView> logits = runner_->Forward(batch, pass);
  stats.duration = absl::Now() - start;
  step_time_.Observe(static_cast<uint32_t>(stats.rows), absl::ToDoubleSeconds(stats.duration));
  gather_.OnStep();
  if (hooks_.on_step) hooks_.on_step(stats);
  return logits;
}

void Worker::GiveHidden(std::span<const ScheduledSequence> scheduled, const HiddenView& hidden) {
  for (const std::unique_ptr<Proposer>& proposer : runner_->proposers()) {
    std::vector<HiddenOfSequence> wanted;
    int first = 0;
    for (const ScheduledSequence& s : scheduled) {
      const HiddenView states = hidden.Rows(std::exchange(first, first + s.hidden_rows), s.hidden_rows);
      if (s.hidden_rows == 0 || ProposerOf(*runner_, *s.sequence) != proposer.get()) continue;
      wanted.push_back({s.sequence, s.sequence->num_computed() + s.rows - s.hidden_rows, states});
    }
    if (!wanted.empty()) proposer->OnHidden(wanted);
  }
}

void Worker::Postprocess(std::vector<ScheduledSequence>& scheduled, const LogitsView& logits) {
  GiveHidden(scheduled, logits.hidden);
  std::vector<Decision> decisions;
  int first_row = 0, first_hidden = 0;
  for (ScheduledSequence& s : scheduled) {
    SequenceState& sequence = *s.sequence;
    if (s.task) {
      if (s.task->status.ok()) sampler_->TakeDeviceResult(sequence, *s.task);
      sequence.MarkComputed(sequence.num_pending());
      store_.Finish(sequence, std::move(s.task->status));
      continue;
    }
    const LogitsView rows{logits.row(first_row).data(), s.logit_rows, logits.vocab};
    first_row += rows.rows;
    const HiddenView hidden = logits.hidden.Rows(first_hidden, s.hidden_rows);
    first_hidden += s.hidden_rows;
    if (sequence.prompt_logprobs() >= 0) sampler_->Score(sequence, sequence.num_computed(), rows);
    sequence.MarkComputed(s.rows);
    if (sequence.num_pending() > 0) continue;
    if (sequence.logit_rows() == 0) {
      store_.Finish(sequence, absl::OkStatus());
      continue;
    }
    const int before = rows.rows - sequence.logit_rows();
    decisions.push_back({&sequence,
                         {rows.row(before).data(), sequence.logit_rows(), rows.vocab},
                         s.hidden_rows < sequence.logit_rows()
                             ? HiddenView()
                             : hidden.Rows(s.hidden_rows - sequence.logit_rows(), sequence.logit_rows())});
  }
  SampleAll(decisions);
}

// Sequences are independent of each other, so it does not matter which thread samples which. They share the
// block pool, however, so finishing them is left to the loop at the end.
void Worker::SampleAll(std::vector<Decision>& decisions) {
  const auto sample = [&](int i) {
    Decision& decision = decisions[static_cast<size_t>(i)];
    decision.done = sampler_->Sample(*decision.sequence, decision.rows);
  };
  int64_t logits = 0;
  for (const Decision& decision : decisions) logits += int64_t{decision.rows.rows} * decision.rows.vocab;
  const int count = static_cast<int>(decisions.size());
  if (logits >= kParallelLogits) {
    runner_->ParallelFor(count, sample);
  } else {
    for (int i = 0; i < count; ++i) sample(i);
  }
  std::vector<VerdictToFollow> to_follow;
  for (const Decision& decision : decisions) {
    SequenceState& sequence = *decision.sequence;
    const auto* const verify = std::get_if<VerifyWork>(&sequence.work());
    const bool wants_proposal = verify != nullptr && verify->propose && ProposerOf(*runner_, sequence);
    if (decision.done.ok() && *decision.done && wants_proposal) {
      VerdictToFollow& verdict = to_follow.emplace_back(VerdictToFollow{.sequence = &sequence});
      if (decision.hidden.rows == 0) continue;
      const std::vector<int>& path = sequence.answer().verdict->path;
      const absl::Span<const float> row = decision.hidden.row(path.empty() ? 0 : path.back() + 1);
      verdict.hidden.assign(row.begin(), row.end());
    } else if (!decision.done.ok() || *decision.done) {
      store_.Finish(sequence, decision.done.status());
    }
  }
  if (to_follow.empty()) return;
  if (absl::Status status = ProposeAfter(to_follow, *runner_, store_); !status.ok()) {
    ReportIfLost(status);
    // The verdicts stand without a proposal.
    for (const VerdictToFollow& verdict : to_follow) verdict.sequence->answer().proposal.clear();
  }
  for (const VerdictToFollow& verdict : to_follow) store_.Finish(*verdict.sequence, absl::OkStatus());
}

void Worker::ReportState() {
  const SequenceStoreCounts counts = store_.counts();
  kv_used_.store(static_cast<float>(counts.blocks_used) /
                     static_cast<float>(counts.blocks_used + counts.blocks_cached + counts.blocks_free),
                 std::memory_order_relaxed);
  if (hooks_.on_state) hooks_.on_state(counts);
  if (hooks_.on_graphs) hooks_.on_graphs(runner_->graph_captures());
  const int in_progress = static_cast<int>(store_.active().size());
  if (items_ != in_progress) CountItems(in_progress - std::exchange(items_, in_progress));
}

}  // namespace outrider
