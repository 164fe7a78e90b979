#include "coordinator/decode/metrics.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/rpc/drafters.h"

namespace outrider {
namespace {

// These series exist from the start, so that rates see the first increment and a gap means a failed scrape.
constexpr const char* kCodes[] = {
    "OK",          "CANCELLED",          "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "UNAUTHENTICATED",
    "UNAVAILABLE", "RESOURCE_EXHAUSTED", "NOT_FOUND",        "INTERNAL"};
constexpr const char* kHttpRefusals[] = {"400", "401", "404", "408", "413", "431", "503"};
constexpr const char* kErrorReasons[] = {"DEADLINE_EXCEEDED", "UNAVAILABLE",    "RESOURCE_EXHAUSTED",
                                         "NOT_FOUND",         "PARAMS_UNKNOWN", "PREFIX_MISMATCH",
                                         "ITEM_LOST"};

constexpr v1::TokenKind kKinds[] = {v1::TOKEN_KIND_ACCEPTED, v1::TOKEN_KIND_CORRECTED, v1::TOKEN_KIND_BONUS,
                                    v1::TOKEN_KIND_PLAIN};
constexpr v1::Rule kRules[] = {v1::RULE_TOKEN, v1::RULE_BLOCK, v1::RULE_COUPLED};

const char* KindOf(const RoundReport& round) {
  if (round.prefill()) return "prefill";
  if (round.drafted() > 0) return "speculative";
  return round.draft_status == DraftStatus::kUsable ? "plain" : "draft_failed";
}

uint64_t CountOf(const prometheus::Counter& counter) { return static_cast<uint64_t>(counter.Value()); }

}  // namespace

Metrics::Server::Server(prometheus::Registry& r, const std::string& name)
    : wire_seconds(
          &HistogramFamily(r, "round_wire_seconds",
                           "Waiting for a server less that server's own time, in seconds, by server.")
               .Add({{"server", name}}, kRoundBuckets)),
      queue_seconds(&HistogramFamily(r, "round_queue_seconds",
                                     "Time that an item waited on a server until its engine began, in "
                                     "seconds, by server.")
                         .Add({{"server", name}}, kRoundBuckets)),
      up_family(prometheus::BuildGauge()
                    .Name(absl::StrCat(kMetricPrefix, name, "_up"))
                    .Help(absl::StrCat("1 while the ", name, " service can be used, by its address."))
                    .Register(r)),
      unexpected(&CounterFamily(r, "unexpected_answers_total",
                                "Answers that nobody waited for, by server: they came too late, or name "
                                "another sequence or round.")
                      .Add({{"server", name}})) {}

void Metrics::Server::OnItem(Clock::duration waited, const v1::ItemTiming& timing) {
  wire_seconds->Observe(std::max(0.0, Seconds(waited) - 1e-6 * ServerMicroseconds(timing)));
  queue_seconds->Observe(1e-6 * timing.queue_us());
}

void Metrics::Server::SetUp(const ServersUp& servers) {
  for (const auto& [address, is_up] : servers) {
    prometheus::Gauge*& gauge = up[address];
    if (gauge == nullptr) gauge = &up_family.Add({{"address", address}});
    gauge->Set(is_up ? 1 : 0);
  }
  std::erase_if(up, [&](const auto& entry) {
    const bool is_gone = !servers.contains(entry.first);
    if (is_gone) up_family.Remove(entry.second);
    return is_gone;
  });
}

Metrics::Metrics(prometheus::Registry& r, int max_requests) : registry_(r) {
  AddGauge(r, "requests_limit", "Most requests in progress, each sample counted; more wait.")
      ->Set(max_requests);
  for (const char* code : kCodes) requests_.Add({{"code", code}});
  for (const char* code : kHttpRefusals) http_refused_.Add({{"code", code}});
  for (const char* reason : kErrorReasons) {
    draft_errors_.Add({{"reason", reason}});
    target_errors_.Add({{"reason", reason}});
  }
  auto& round_seconds = HistogramFamily(
      r, "round_duration_seconds",
      "A whole round, in seconds, by kind: prefill computes the prompt, plain wants no draft, "
      "draft_failed wanted one and got none, speculative has one.");
  for (const char* kind : {"prefill", "plain", "speculative", "draft_failed"}) {
    round_seconds_[kind] = &round_seconds.Add({{"kind", kind}}, kRoundBuckets);
  }
  auto& emitted =
      CounterFamily(r, "spec_decode_num_emitted_tokens_total",
                    "Tokens in answers: accepted, corrected, bonus, or plain (a round without a draft).");
  for (v1::TokenKind kind : kKinds) emitted_[kind] = &emitted.Add({{"kind", NameOf(kind)}});
  auto& drafts = CounterFamily(r, "spec_decode_num_drafts_by_drafter_total",
                               "Rounds that verified at least one drafted token, by who drafted and rule.");
  auto& first_accepted =
      CounterFamily(r, "spec_decode_num_accepted_drafts_by_drafter_total",
                    "Of them, those whose first drafted token was accepted, whatever K was.");
  auto& drafted = CounterFamily(r, "spec_decode_num_draft_tokens_by_drafter_total",
                                "Drafted tokens that were sent to the target, by who drafted them and rule.");
  auto& accepted = CounterFamily(r, "spec_decode_num_accepted_tokens_by_drafter_total",
                                 "Drafted tokens that the target accepted, by who drafted them and rule.");
  std::vector<v1::DrafterKind> kinds = {v1::DRAFTER_KIND_MODEL, v1::DRAFTER_KIND_BOTH_MODELS,
                                        v1::DRAFTER_KIND_NGRAM, v1::DRAFTER_KIND_COPY,
                                        v1::DRAFTER_KIND_GRAMMAR};
  for (const OwnDrafter& own : kOwnDrafters) kinds.push_back(own.drafter);
  for (v1::DrafterKind kind : kinds) {
    for (v1::Rule rule : kRules) {
      const prometheus::Labels labels = {{"drafter", NameOf(kind)}, {"rule", NameOf(rule)}};
      by_drafter_[{kind, rule}] = {&drafts.Add(labels), &first_accepted.Add(labels), &drafted.Add(labels),
                                   &accepted.Add(labels)};
    }
  }
  auto& seconds =
      CounterFamily(r, "spec_decode_round_seconds_total",
                    "Time of rounds, in seconds, by mode (plain: nobody drafted; speculative: a draft "
                    "was wanted) and by generations in progress, up to that many.");
  auto& tokens = CounterFamily(r, "spec_decode_round_tokens_total", "Tokens that the same rounds emitted.");
  const auto add = [&](const char* mode, ByRunning& counters) {
    for (size_t i = 0; i < counters.size(); ++i) {
      const std::string most = i < kMostRunning.size() ? std::to_string(kMostRunning[i]) : "+Inf";
      const prometheus::Labels labels = {{"mode", mode}, {"running", most}};
      counters[i] = {&seconds.Add(labels), &tokens.Add(labels)};
    }
  };
  add("plain", plain_);
  add("speculative", speculative_);
}

uint64_t Metrics::Numbered::Sum() const {
  uint64_t sum = 0;
  for (const Counter* counter : counters) sum += CountOf(*counter);
  return sum;
}

void Metrics::OnRound(const RoundReport& round) {
  rounds_.Increment();
  const Verdict& verdict = *round.verdict;
  if (round.generation->stats().exact()) {
    surprisal_.Increment(std::max(0.0, verdict.surprisal));
    entropy_.Increment(std::max(0.0, verdict.entropy));
  }
  if (verdict.empty_residual) empty_residuals_.Increment();
  round_seconds_.at(KindOf(round))->Observe(Seconds(round.times.round));
  CountSpeed(round);
  verify_seconds_.Observe(Seconds(round.times.verify));
  target_.OnItem(round.times.verify, round.times.verify_server);
  if (!round.prefill()) chosen_draft_tokens_.Observe(round.chosen);
  const bool was_asked = round.drafted() > 0 || round.draft_status == DraftStatus::kFailed;
  // Whether the draft or the target made the proposal. A local drafter is not waited for.
  const bool has_server =
      round.drafter == v1::DRAFTER_KIND_MODEL || ProposerOf(round.drafter) != v1::PROPOSER_UNSPECIFIED;
  if (was_asked && has_server) draft_seconds_.Observe(Seconds(round.times.draft));
  if (round.drafted() > 0) CountDraft(round);
  if (round.ahead.branches == 0) return;
  const int accepted = std::min(round.accepted(), kMaxDraftTokens);
  ahead_rounds_[accepted].Increment();
  if (round.ahead.hit) ahead_hits_[accepted].Increment();
  ahead_branches_.Increment(round.ahead.branches);
  ahead_wasted_tokens_.Increment(static_cast<double>(round.ahead.wasted_tokens));
}

void Metrics::CountDraft(const RoundReport& round) {
  // For a proposal begun ahead, most of the server's time was not waited for.
  if (round.drafter == v1::DRAFTER_KIND_MODEL && round.ahead.steps == 0) {
    draft_.OnItem(round.times.draft, round.times.draft_server);
  }
  const RoundTally& tally = round.generation->tally();
  drafts_.Increment();
  draft_tokens_.Increment(round.drafted());
  accepted_tokens_.Increment(tally.accepted);
  accepted_after_end_.Increment(tally.accepted_after_end);
  if (tally.is_tree) trees_.Increment();
  for (const OfferedNode& node : tally.offered) {
    const int rank = std::min(node.rank, kRanks - 1);
    offered_of_rank_[rank].Increment();
    if (node.accepted) accepted_of_rank_[rank].Increment();
  }
  const v1::Rule rule = round.generation->request().params.rule();
  if (const auto counters = by_drafter_.find({round.drafter, rule}); counters != by_drafter_.end()) {
    counters->second.drafts->Increment();
    if (round.accepted() > 0) counters->second.first_accepted->Increment();
    counters->second.drafted->Increment(round.drafted());
    counters->second.accepted->Increment(tally.accepted);
  }
  for (const int depth : tally.depths) drafted_at_[depth].Increment();
  for (int depth = 0; depth < tally.accepted; ++depth) accepted_at_[depth].Increment();
  if (rule == v1::RULE_TOKEN && round.generation->stats().exact()) {
    observed_accepted_.Increment(round.accepted());
    expected_accepted_.Increment(round.verdict->expected_accepted);
    expected_accepted_variance_.Increment(round.verdict->expected_variance);
  }
}

void Metrics::OnEmitted(const v1::GenerateResponse& chunk) {
  generation_tokens_.Increment(chunk.tokens_size());
  for (const v1::GeneratedToken& token : chunk.tokens()) {
    const auto counter = emitted_.find(token.kind());
    (counter != emitted_.end() ? counter->second : emitted_.at(v1::TOKEN_KIND_PLAIN))->Increment();
  }
}

v1::SpeculationTotals Metrics::Totals() const {
  v1::SpeculationTotals totals;
  totals.set_rounds(CountOf(rounds_));
  totals.set_drafts(CountOf(drafts_));
  totals.set_drafted(CountOf(draft_tokens_));
  totals.set_accepted(CountOf(accepted_tokens_));
  totals.set_emitted(CountOf(generation_tokens_));
  totals.set_observed_accepted(observed_accepted_.Value());
  totals.set_expected_accepted(expected_accepted_.Value());
  totals.set_ahead_rounds(ahead_rounds_.Sum());
  totals.set_ahead_hits(ahead_hits_.Sum());
  return totals;
}

void Metrics::CountSpeed(const RoundReport& round) {
  if (round.prefill()) return;
  plain_in_a_row_ = round.speculative() ? 0 : std::min(plain_in_a_row_ + 1, round.running);
  // With fewer plain rounds in a row than generations, one of these may have drafted in its last round.
  if (!round.speculative() && plain_in_a_row_ < round.running) return;
  const auto group = std::lower_bound(kMostRunning.begin(), kMostRunning.end(), round.running);
  ByRunning& counters = round.speculative() ? speculative_ : plain_;
  const SpeedCounters& of = counters[group - kMostRunning.begin()];
  of.seconds->Increment(Seconds(round.times.round));
  of.tokens->Increment(round.emitted);
}

}  // namespace outrider
