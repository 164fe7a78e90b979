#include "coordinator/metrics.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/drafter_name.h"

namespace outrider {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using Buckets = prometheus::Histogram::BucketBoundaries;

// From a round on loopback to a long answer.
const Buckets kRoundBuckets = {5e-5, 1e-4, 2e-4, 3e-4, 5e-4, 7.5e-4, 1e-3, 1.5e-3, 2e-3, 3e-3,
                               5e-3, 1e-2, 2e-2, 5e-2, 1e-1, 2e-1,   5e-1, 1,      2,    5};
const Buckets kRequestBuckets = {1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1, 2e-1, 5e-1,
                                 1,    2,    5,    10,   30,   60,   120,  300};

constexpr char kPrefix[] = "outrider_";

prometheus::Family<prometheus::Counter>& CounterFamily(prometheus::Registry& registry, const char* name,
                                                       const char* help) {
  return BuildCounter().Name(absl::StrCat(kPrefix, name)).Help(help).Register(registry);
}
prometheus::Counter* AddCounter(prometheus::Registry& registry, const char* name, const char* help) {
  return &CounterFamily(registry, name, help).Add({});
}
prometheus::Gauge* AddGauge(prometheus::Registry& registry, const char* name, const char* help) {
  return &BuildGauge().Name(absl::StrCat(kPrefix, name)).Help(help).Register(registry).Add({});
}
prometheus::Histogram* AddHistogram(prometheus::Registry& registry, const char* name, const char* help,
                                    const Buckets& buckets) {
  return &BuildHistogram().Name(absl::StrCat(kPrefix, name)).Help(help).Register(registry).Add({}, buckets);
}

const char* KindName(v1::TokenKind kind) {
  switch (kind) {
    case v1::TOKEN_KIND_ACCEPTED:
      return "accepted";
    case v1::TOKEN_KIND_CORRECTED:
      return "corrected";
    case v1::TOKEN_KIND_BONUS:
      return "bonus";
    default:
      return "plain";
  }
}

}  // namespace

Metrics::Metrics(prometheus::Registry& r)
    : drafts_(
          AddCounter(r, "spec_decode_num_drafts_total", "Rounds that verified at least one drafted token.")),
      draft_tokens_(AddCounter(r, "spec_decode_num_draft_tokens_total",
                               "Drafted tokens that were sent to the target.")),
      accepted_tokens_(
          AddCounter(r, "spec_decode_num_accepted_tokens_total", "Drafted tokens that the target accepted.")),
      accepted_per_position_(CounterFamily(r, "spec_decode_num_accepted_tokens_per_pos_total",
                                           "Accepted tokens by their position in the draft, from 0.")),
      drafted_per_position_(CounterFamily(r, "spec_decode_num_draft_tokens_per_pos_total",
                                          "Drafted tokens by their position in the draft, from 0.")),
      emitted_(CounterFamily(
          r, "spec_decode_num_emitted_tokens_total",
          "Tokens in answers: accepted, corrected, bonus, or plain (a round without a draft).")),
      expected_accepted_(
          AddCounter(r, "spec_decode_expected_accepted_tokens_total",
                     "Sum over verified positions of sum_x min(p, q), token rule only. Accepted tokens "
                     "over this tends to 1 if the draft sampled from the q that it sent.")),
      expected_accepted_variance_(AddCounter(r, "spec_decode_expected_accepted_tokens_variance_total",
                                             "Variance that goes with the expected accepted tokens.")),
      surprisal_(AddCounter(r, "spec_decode_surprisal_nats_total",
                            "Sum over emitted tokens of -ln p(token). Over the entropy it tends to 1.")),
      entropy_(AddCounter(r, "spec_decode_entropy_nats_total",
                          "Sum over the same positions of the entropy of p.")),
      empty_residuals_(
          AddCounter(r, "spec_decode_empty_residuals_total",
                     "Corrections whose residual had no mass, so that p itself was drawn from.")),
      rounds_(AddCounter(r, "rounds_total", "Calls of the target that returned a verdict.")),
      running_(AddGauge(r, "requests_running", "Requests in progress.")),
      requests_(CounterFamily(r, "requests_total", "Requests that ended, by status code.")),
      first_token_seconds_(AddHistogram(r, "time_to_first_token_seconds",
                                        "From the request to its first committed token, in seconds.",
                                        kRequestBuckets)),
      per_token_seconds_(AddHistogram(r, "time_per_output_token_seconds",
                                      "Decoding time over tokens after the first, a request, in seconds.",
                                      kRoundBuckets)),
      request_seconds_(AddHistogram(r, "e2e_request_latency_seconds",
                                    "From the request to its end, in seconds.", kRequestBuckets)),
      round_seconds_(AddHistogram(r, "round_duration_seconds", "A whole round, in seconds.", kRoundBuckets)),
      draft_seconds_(AddHistogram(r, "round_draft_seconds", "Part of a round spent waiting for the proposal.",
                                  kRoundBuckets)),
      verify_seconds_(AddHistogram(r, "round_verify_seconds",
                                   "Part of a round spent waiting for the verdict.", kRoundBuckets)),
      wire_seconds_(BuildHistogram()
                        .Name(absl::StrCat(kPrefix, "round_wire_seconds"))
                        .Help("Waiting for a server less that server's own time, by server.")
                        .Register(r)),
      draft_wire_seconds_(&wire_seconds_.Add({{"server", "draft"}}, kRoundBuckets)),
      verify_wire_seconds_(&wire_seconds_.Add({{"server", "target"}}, kRoundBuckets)),
      draft_errors_(CounterFamily(r, "draft_errors_total", "Proposals that failed, by reason.")),
      target_errors_(CounterFamily(r, "target_errors_total", "Verifications that failed, by reason.")),
      draft_up_(AddGauge(r, "draft_up", "1 while the draft service can be used.")),
      target_up_(AddGauge(r, "target_up", "1 while the target service can be used.")),
      degraded_(AddGauge(r, "degraded",
                         "1 while a draft service is configured but cannot be used: decoding is plain.")) {
  auto& drafted = CounterFamily(r, "spec_decode_num_draft_tokens_by_drafter_total",
                                "Drafted tokens that were sent to the target, by who drafted them.");
  auto& accepted = CounterFamily(r, "spec_decode_num_accepted_tokens_by_drafter_total",
                                 "Drafted tokens that the target accepted, by who drafted them.");
  for (v1::DrafterKind kind : {v1::DRAFTER_KIND_MODEL, v1::DRAFTER_KIND_NGRAM, v1::DRAFTER_KIND_COPY,
                               v1::DRAFTER_KIND_UNIGRAM, v1::DRAFTER_KIND_BIGRAM, v1::DRAFTER_KIND_RANDOM}) {
    const std::string name = DrafterName(kind);
    by_drafter_[kind] = {&drafted.Add({{"drafter", name}}), &accepted.Add({{"drafter", name}})};
  }
}

prometheus::Counter& Metrics::PerPosition(std::vector<prometheus::Counter*>& counters,
                                          prometheus::Family<prometheus::Counter>& family, int position) {
  while (static_cast<int>(counters.size()) <= position) {
    counters.push_back(&family.Add({{"position", std::to_string(counters.size())}}));
  }
  return *counters[position];
}

void Metrics::OnRound(v1::DrafterKind drafter, int drafted, const v1::Verdict& verdict, v1::Rule rule,
                      const RoundTimes& times) {
  rounds_->Increment();
  const v1::Canary& canary = verdict.canary();
  surprisal_->Increment(std::max(0.0, canary.surprisal()));
  entropy_->Increment(std::max(0.0, canary.entropy()));
  if (canary.residual_empty()) empty_residuals_->Increment();
  round_seconds_->Observe(Seconds(times.round));
  verify_seconds_->Observe(Seconds(times.verify));
  verify_wire_seconds_->Observe(
      std::max(0.0, Seconds(times.verify) - 1e-6 * ServerMicroseconds(times.verify_server)));
  if (drafted == 0) return;
  draft_seconds_->Observe(Seconds(times.draft));
  draft_wire_seconds_->Observe(
      std::max(0.0, Seconds(times.draft) - 1e-6 * ServerMicroseconds(times.draft_server)));
  drafts_->Increment();
  draft_tokens_->Increment(drafted);
  accepted_tokens_->Increment(verdict.accepted_size());
  if (const auto counters = by_drafter_.find(drafter); counters != by_drafter_.end()) {
    counters->second.drafted->Increment(drafted);
    counters->second.accepted->Increment(verdict.accepted_size());
  }
  for (int i = 0; i < drafted; ++i) PerPosition(drafted_at_, drafted_per_position_, i).Increment();
  for (int i = 0; i < verdict.accepted_size(); ++i) {
    PerPosition(accepted_at_, accepted_per_position_, i).Increment();
  }
  if (rule == v1::RULE_TOKEN) {
    expected_accepted_->Increment(canary.expected_accepted());
    expected_accepted_variance_->Increment(canary.expected_accepted_variance());
  }
}

void Metrics::OnEmitted(const v1::GenerateResponse& chunk) {
  for (const v1::GeneratedToken& token : chunk.tokens()) {
    emitted_.Add({{"kind", KindName(token.kind())}}).Increment();
  }
}

void Metrics::OnRequestEnd(const std::string& code) {
  running_->Decrement();
  requests_.Add({{"code", code}}).Increment();
}

void Metrics::OnFinish(const v1::Finish& finish, double total_seconds) {
  first_token_seconds_->Observe(finish.usage().first_token_seconds());
  if (finish.usage().completion_tokens() > 1) {
    per_token_seconds_->Observe(finish.usage().decode_seconds() / (finish.usage().completion_tokens() - 1));
  }
  request_seconds_->Observe(total_seconds);
}

void Metrics::SetUp(bool draft, bool target, bool degraded) {
  draft_up_->Set(draft ? 1 : 0);
  target_up_->Set(target ? 1 : 0);
  degraded_->Set(degraded ? 1 : 0);
}

}  // namespace outrider
