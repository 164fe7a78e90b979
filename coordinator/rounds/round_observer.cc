#include "coordinator/rounds/round_observer.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "common/obs/log.h"
#include "common/rpc/convert.h"

namespace outrider {
namespace {

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

void LogRound(const RoundReport& report) {
  const Generation& generation = *report.generation;
  LogDebug("round", {{"request_id", generation.request().context.request_id()},
                     {"sequence", absl::BytesToHexString(generation.sequence_id())},
                     {"round", generation.stats().rounds() - 1},
                     {"drafted", report.drafted()},
                     {"accepted", report.accepted()},
                     {"draft_us", Microseconds(report.times.draft)},
                     {"verify_us", Microseconds(report.times.verify)},
                     {"round_us", Microseconds(report.times.round)}});
}

}  // namespace

void RoundObserver::OnRound(const RoundReport& report, v1::GenerateResponse* chunk) {
  const Generation& generation = *report.generation;
  if (report.prefill()) {
    // Its time says nothing of the rounds that follow.
  } else if (report.outcome == DraftOutcome::kFailed) {
    policy_->OnDraftFailed(report);
  } else {
    policy_->OnRound(report);
  }
  metrics_->OnRound(report);
  metrics_->OnEmitted(*chunk);
  if (LogEnabled(LogLevel::kDebug)) LogRound(report);
  if (generation.request().trace) FillTrace(report, chunk->mutable_trace());
}

}  // namespace outrider
