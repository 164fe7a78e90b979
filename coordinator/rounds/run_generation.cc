#include "coordinator/rounds/run_generation.h"

#include <utility>

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
  trace->set_accepted(static_cast<uint32_t>(report.accepted()));
  trace->set_token(static_cast<uint32_t>(report.verdict->token));
  trace->set_token_text(generation.Display(report.verdict->token));
  trace->set_kind(ToProto(report.verdict->kind));
  trace->set_draft_us(Microseconds(times.draft));
  trace->set_draft_compute_us(ServerMicroseconds(times.draft_server));
  trace->set_verify_us(Microseconds(times.verify));
  trace->set_verify_compute_us(ServerMicroseconds(times.verify_server));
  trace->set_round_us(Microseconds(times.round));
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

asio::awaitable<absl::Status> RunGeneration(Generation& generation, Cast cast, Clock::time_point deadline) {
  if (auto chunk = generation.FinishedAlready()) co_return co_await cast.sink->Send(*std::move(chunk));
  if (cast.drafter != nullptr && cast.policy->ExpectsToDraft(generation)) cast.drafter->Begin(generation, 0);
  while (!generation.finished()) {
    RoundTimes times;
    const Clock::time_point start = Clock::now();
    const size_t n = generation.size();

    // The draft guesses...
    Proposal proposal;
    const int k = cast.policy->DraftTokens(generation);
    if (cast.drafter != nullptr && k > 0) {
      cast.drafter->Begin(generation, k);
      proposal = co_await cast.drafter->Take(generation, &times.draft_server);
    }
    const Clock::time_point drafted = Clock::now();
    times.draft = drafted - start;

    // ...the target decides...
    absl::StatusOr<TargetAnswer> answer = co_await cast.target->Verify(generation, proposal, deadline);
    if (!answer.ok()) co_return answer.status();
    const Verdict& verdict = answer->verdict;
    times.verify = Clock::now() - drafted;
    times.verify_server = answer->timing;
    if (cast.drafter != nullptr) cast.drafter->OnVerdict(n, verdict.path.size());

    // ...and what it decided is committed, then sent.
    if (generation.emitted() == 0) generation.OnPromptCached(answer->prefix_hit);
    v1::GenerateResponse chunk = generation.Commit(proposal, verdict);
    generation.AddLogprobs(answer->logprobs, answer->prompt_logprobs, &chunk);
    times.round = Clock::now() - start;
    const RoundReport report = {
        .generation = &generation,
        .proposal = &proposal,
        .verdict = &verdict,
        .drafter = cast.drafter != nullptr ? cast.drafter->kind() : v1::DRAFTER_KIND_NONE,
        .chosen = cast.drafter != nullptr ? k : 0,
        .proposal_bytes = answer->proposal_bytes,
        .times = times};
    if (!report.prefill()) {
      cast.policy->OnRound(generation, report.drafted(), report.accepted(), times);
    }
    cast.metrics->OnRound(report);
    cast.metrics->OnEmitted(chunk);
    if (LogEnabled(LogLevel::kDebug)) LogRound(report);
    if (generation.request().trace) FillTrace(report, chunk.mutable_trace());
    if (absl::Status status = co_await cast.sink->Send(std::move(chunk)); !status.ok()) co_return status;
  }
  co_return absl::OkStatus();
}

}  // namespace outrider
