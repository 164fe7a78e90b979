#include "coordinator/decode/round_loop.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "common/obs/log.h"
#include "common/rpc/convert.h"
#include "common/rpc/drafters.h"

namespace outrider {
namespace {

// Prompt positions in one chunk. With 20 alternatives each, they take half a millisecond and 100 kB.
constexpr int kPromptPiece = 128;

// Which rounds of an answer have a span: the first ones, then one in so many. A trace of all is of no use.
constexpr uint64_t kFirstRoundsTraced = 16;
constexpr uint64_t kTraceRoundEvery = 16;

uint32_t Microseconds(Clock::duration duration) {
  return static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::microseconds>(duration).count());
}

void FillTrace(const RoundReport& report, v1::RoundTrace* trace) {
  const Generation& generation = *report.generation;
  const RoundTimes& times = report.times;
  trace->set_round(generation.stats().rounds() - 1);
  trace->set_draft_bytes(report.proposal_bytes);
  for (const ProposalNode& node : *report.proposal) {
    trace->add_drafted(static_cast<uint32_t>(node.token));
    trace->add_drafted_text(generation.Display(node.token));
  }
  if (!IsChain(*report.proposal)) {
    for (const ProposalNode& node : *report.proposal) trace->add_parents(node.parent);
    for (const int node : report.verdict->path) trace->add_path(static_cast<uint32_t>(node));
  }
  trace->set_accepted(static_cast<uint32_t>(report.accepted()));
  trace->set_token(static_cast<uint32_t>(report.verdict->token));
  trace->set_token_text(generation.Display(report.verdict->token));
  trace->set_kind(ToProto(report.verdict->kind));
  const uint32_t draft_us = Microseconds(times.draft);
  trace->set_draft_us(draft_us);
  trace->set_draft_compute_us(std::min(ServerMicroseconds(times.draft_server), draft_us));
  trace->set_verify_us(Microseconds(times.verify));
  trace->set_verify_compute_us(ServerMicroseconds(times.verify_server));
  trace->set_round_us(Microseconds(times.round));
  trace->set_drafted_ahead(report.ahead.steps > 0);
  trace->set_branches(static_cast<uint32_t>(report.ahead.branches));
}

}  // namespace

asio::awaitable<absl::Status> RoundLoop::ComputePrompt() {
  if (auto chunk = generation.FinishedAlready()) co_return co_await send_(*std::move(chunk));
  TraceRound();
  if (generation.DraftRoom() > 0 && parts.policy->ExpectsToDraft(generation)) drafter->Begin({});
  co_return co_await Round();
}

asio::awaitable<absl::Status> RoundLoop::Decode() {
  absl::Status status;
  while (status.ok() && !generation.finished()) {
    TraceRound();
    status = co_await Round();
  }
  co_return status;
}

void RoundLoop::TraceRound() {
  const uint64_t round = generation.stats().rounds();
  const std::string& request = generation.request().context.traceparent();
  const bool is_traced = parts.tracer != nullptr && !request.empty() &&
                         (round < kFirstRoundsTraced || round % kTraceRoundEvery == 0);
  span_ = is_traced ? parts.tracer->Start(Span::Kind::kInternal, "round", request) : Span();
  generation.SetRoundTrace(span_.traceparent());
  if (!span_.records()) return;
  span_.Set({{"outrider.sample", generation.request().params.sample_index()}, {"outrider.round", round}});
}

asio::awaitable<absl::StatusOr<int>> RoundLoop::SendPromptLogprobs(const Generation::Logprobs& prompt) {
  int sent = 0;
  while (prompt.size() - sent > kPromptPiece) {
    v1::GenerateResponse piece;
    piece.set_position(static_cast<uint32_t>(generation.emitted()));
    generation.AddPromptLogprobs(prompt, sent, kPromptPiece, &piece);
    sent += kPromptPiece;
    if (absl::Status status = co_await send_(std::move(piece)); !status.ok()) co_return status;
    // Other generations' rounds run between pieces.
    co_await asio::post(co_await asio::this_coro::executor, asio::use_awaitable);
  }
  co_return sent;
}

asio::awaitable<absl::Status> RoundLoop::Round() {
  RoundTimes times;
  const Clock::time_point start = Clock::now();
  const size_t n = generation.size();

  // The draft proposes...
  Proposal proposal;
  DraftStatus draft_status = DraftStatus::kUsable;
  generation.SetRoundDrafter(drafter->NextKind());
  // If the target proposes, the length was chosen before its verdict, which may have left less room.
  const bool is_targets = ProposerOf(generation.round_drafter()) != v1::PROPOSER_UNSPECIFIED;
  DraftLength length = is_targets ? next_ : parts.policy->Choose(generation);
  length.most = std::min(length.most, std::max(generation.DraftRoom(), 0));
  int k = length.most;
  if (k > 0) {
    drafter->Begin(length);
    proposal = co_await drafter->Take(&times.draft_server);
    draft_status = drafter->status();
    // A draft that stops by itself chose its own K, and a proposal begun ahead has the K chosen then.
    const bool has_own_k = length.stop || drafter->ahead().steps > 0;
    if (has_own_k && !proposal.empty()) k = static_cast<int>(proposal.size());
  }
  const Clock::time_point proposed = Clock::now();
  times.draft = proposed - start + std::exchange(asking_, {});

  // ...the target verifies...
  const bool proposal_was_made = !proposal.empty();
  const std::function<void()> away = [&] {
    drafter->RunAhead(proposal, parts.policy->Outcomes(generation, proposal));
  };
  const bool runs_ahead = length.ahead && proposal_was_made;
  // The target proposes nothing while it scores the prompt.
  const bool target_may_propose = generation.request().params.proposer() != v1::PROPOSER_UNSPECIFIED;
  const bool is_next = target_may_propose && !generation.WantsPromptLogprobs();
  next_ = is_next ? parts.policy->ChooseNext(generation) : DraftLength();
  const bool asks = next_.most > 0 && drafter->WantsTargetProposal();
  absl::StatusOr<TargetAnswer> answer =
      co_await target.Verify(proposal, runs_ahead ? &away : nullptr, asks ? &next_ : nullptr);
  if (!answer.ok()) {
    span_.SetStatus(answer.status());
    span_.End();
    co_return answer.status();
  }
  if (proposal_was_made && proposal.empty()) draft_status = DraftStatus::kFailed;
  const Clock::time_point verified = Clock::now();
  // The time of the target's own proposal counts in the next round, which verifies it.
  asking_ = std::chrono::microseconds(answer->next.timing.compute_us());
  times.verify = verified - proposed - asking_;
  times.verify_server = answer->timing;
  drafter->OnVerdict(n, answer->verdict);
  if (asks) drafter->OnProposal(n + answer->verdict.path.size() + 1, std::move(answer->next));
  AheadReport ahead = proposal_was_made ? drafter->ahead() : AheadReport();
  ahead.runs = length.ahead;
  if (ahead.branches > 0) generation.CountAhead(ahead.hit);

  // ...what stands is committed...
  if (generation.emitted() == 0) generation.OnPromptCached(answer->prefix_hit);
  const absl::StatusOr<int> sent = co_await SendPromptLogprobs(answer->prompt_logprobs);
  if (!sent.ok()) co_return sent.status();
  const size_t predicted = proposal.empty() ? 0 : drafter->predicted();
  v1::GenerateResponse chunk = generation.Commit(proposal, answer->verdict, predicted);
  generation.AddLogprobs(answer->logprobs, &chunk);
  generation.AddPromptLogprobs(answer->prompt_logprobs, *sent, kPromptPiece, &chunk);
  times.round = times.draft + times.verify + (Clock::now() - verified);
  Report({.generation = &generation,
          .proposal = &proposal,
          .verdict = &answer->verdict,
          .drafter = drafter->kind(),
          .draft_status = draft_status,
          .chosen = k,
          .emitted = chunk.tokens_size(),
          .running = parts.policy->running(),
          .proposal_bytes = answer->proposal_bytes,
          .ahead = ahead,
          .catches_up = !std::exchange(drafted_before_, proposal_was_made),
          .times = times},
         &chunk);

  // ...and sent.
  co_return co_await send_(std::move(chunk));
}

void RoundLoop::Report(const RoundReport& report, v1::GenerateResponse* chunk) {
  // The time of the prompt's round says nothing about the rounds that follow.
  if (!report.prefill()) parts.policy->OnRound(report);
  parts.metrics->OnRound(report);
  parts.metrics->OnEmitted(*chunk);
  if (LogEnabled(LogLevel::kDebug)) {
    LogDebug("round", {{"request_id", generation.request().context.request_id()},
                       {"sequence", absl::BytesToHexString(generation.sequence_id())},
                       {"round", generation.stats().rounds() - 1},
                       {"drafted", report.drafted()},
                       {"accepted", report.accepted()},
                       {"draft_us", Microseconds(report.times.draft)},
                       {"verify_us", Microseconds(report.times.verify)},
                       {"round_us", Microseconds(report.times.round)}});
  }
  if (generation.request().trace) FillTrace(report, chunk->mutable_trace());
  if (!span_.records()) return;
  span_.Set({{"outrider.drafter", NameOf(report.drafter)},
             {"outrider.drafted", report.drafted()},
             {"outrider.accepted", report.accepted()},
             {"outrider.emitted", report.emitted},
             {"outrider.draft_us", Microseconds(report.times.draft)},
             {"outrider.verify_us", Microseconds(report.times.verify)}});
  span_.End();
}

}  // namespace outrider
