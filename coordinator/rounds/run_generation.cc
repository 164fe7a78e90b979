#include "coordinator/rounds/run_generation.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "common/obs/log.h"

namespace outrider {
namespace {

uint32_t Microseconds(Clock::duration duration) {
  return static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::microseconds>(duration).count());
}

void FillTrace(const Generation& generation, const DraftNodes& proposal, const v1::VerifyResult& result,
               const RoundTimes& times, uint64_t round, v1::RoundTrace* trace) {
  trace->set_round(round);
  for (const v1::DraftNode& node : proposal) {
    trace->set_draft_bytes(trace->draft_bytes() + static_cast<uint32_t>(node.ByteSizeLong()));
    trace->add_drafted(node.token());
    trace->add_drafted_text(generation.Display(static_cast<TokenId>(node.token())));
  }
  trace->set_accepted(static_cast<uint32_t>(result.verdict().accepted_size()));
  trace->set_token(result.verdict().token());
  trace->set_token_text(generation.Display(static_cast<TokenId>(result.verdict().token())));
  trace->set_kind(result.verdict().kind());
  trace->set_draft_us(Microseconds(times.draft));
  trace->set_draft_compute_us(ServerMicroseconds(times.draft_server));
  trace->set_verify_us(Microseconds(times.verify));
  trace->set_verify_compute_us(ServerMicroseconds(times.verify_server));
  trace->set_round_us(Microseconds(times.round));
}

void LogRound(const Generation& generation, int drafted, const v1::Verdict& verdict,
              const RoundTimes& times) {
  LogDebug("round", {{"request_id", generation.request().context.request_id()},
                     {"sequence", absl::BytesToHexString(generation.sequence_id())},
                     {"round", generation.stats().rounds() - 1},
                     {"drafted", drafted},
                     {"accepted", verdict.accepted_size()},
                     {"draft_us", Microseconds(times.draft)},
                     {"verify_us", Microseconds(times.verify)},
                     {"round_us", Microseconds(times.round)}});
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
    DraftNodes proposal;
    const int k = cast.policy->DraftTokens(generation);
    if (cast.drafter != nullptr && k > 0) {
      cast.drafter->Begin(generation, k);
      proposal = co_await cast.drafter->Take(generation, &times.draft_server);
    }
    const Clock::time_point drafted = Clock::now();
    times.draft = drafted - start;

    // ...the target decides...
    absl::StatusOr<v1::VerifyResult> result = co_await cast.target->Verify(generation, proposal, deadline);
    if (!result.ok()) co_return result.status();
    const v1::Verdict& verdict = result->verdict();
    times.verify = Clock::now() - drafted;
    times.verify_server = result->timing();
    if (cast.drafter != nullptr) cast.drafter->OnVerdict(n, verdict.accepted_size());

    // ...and what it decided is committed, then sent.
    if (generation.emitted() == 0) generation.OnPromptCached(result->prefix_hit());
    v1::GenerateResponse chunk = generation.Commit(proposal, verdict);
    for (v1::PositionLogprobs& position : *result->mutable_prompt_logprobs()) {
      *chunk.add_prompt_logprobs() = generation.WithText(std::move(position));
    }
    times.round = Clock::now() - start;
    const bool prefill = generation.stats().rounds() == 1;
    if (!prefill) {
      cast.policy->OnRound(generation, proposal.size(), verdict.accepted_size(), times);
    }
    cast.metrics->OnRound({.prefill = prefill,
                           .chosen = cast.drafter != nullptr ? k : 0,
                           .drafted = proposal.size(),
                           .drafter = cast.drafter != nullptr ? cast.drafter->kind() : v1::DRAFTER_KIND_NONE,
                           .rule = generation.request().params.rule(),
                           .exact = generation.stats().exact(),
                           .verdict = &verdict,
                           .times = times});
    cast.metrics->OnEmitted(chunk);
    if (LogEnabled(LogLevel::kDebug)) LogRound(generation, proposal.size(), verdict, times);
    if (generation.request().trace) {
      FillTrace(generation, proposal, *result, times, generation.stats().rounds() - 1, chunk.mutable_trace());
    }
    if (absl::Status status = co_await cast.sink->Send(std::move(chunk)); !status.ok()) co_return status;
  }
  co_return absl::OkStatus();
}

}  // namespace outrider
