// The coordinator's metrics. Names and meaning follow vLLM where it has them.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/obs/metric_families.h"
#include "common/spec/types.h"
#include "coordinator/generation/generation.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// Thread-safe.
class Metrics {
 public:
  // `max_requests` is the limit of requests_running.
  Metrics(prometheus::Registry& registry, int max_requests);

  void OnRound(const RoundReport& round);
  void OnEmitted(const v1::GenerateResponse& chunk);
  void SetRequests(size_t running, size_t waiting) {
    for (Gauge* gauge : {&running_, &vllm_running_}) gauge->Set(static_cast<double>(running));
    for (Gauge* gauge : {&waiting_, &vllm_waiting_}) gauge->Set(static_cast<double>(waiting));
  }
  // The share of KV blocks that sequences use, 0 to 1: the mean of the targets that can be used.
  void SetKvUsed(double share) {
    for (Gauge* gauge : {&kv_used_, &vllm_kv_used_}) gauge->Set(share);
  }
  // The prompt is computed and the first token came `seconds` after the request. Call once a request.
  void OnFirstToken(double seconds, size_t prompt_tokens) {
    first_token_seconds_.Observe(seconds);
    prompt_tokens_.Increment(static_cast<double>(prompt_tokens));
  }
  // A sample has ended, with or without an error.
  void OnSampleEnd(const Generation::Progress& progress) {
    if (progress.tokens > 1) per_token_seconds_.Observe(progress.decode_seconds / (progress.tokens - 1));
  }
  // A beam search has ended. It asked the target `rounds` times and took `steps` steps.
  void OnSearch(uint64_t rounds, int steps) {
    searches_.Increment();
    search_rounds_.Increment(static_cast<double>(rounds));
    search_steps_.Increment(steps);
  }
  // A request that was admitted has ended, `seconds` after it came.
  void OnRequestTime(double seconds) { request_seconds_.Observe(seconds); }
  // A request has ended, admitted or not. `code` is "OK" or the name of an absl status code.
  void OnRequestEnd(const std::string& code) { requests_.Add({{"code", code}}).Increment(); }
  // An HTTP request that was refused before it reached the service.
  void OnHttpRefused(int status) { http_refused_.Add({{"code", std::to_string(status)}}).Increment(); }
  // An item that a server refused or did not answer, by reason.
  void OnDraftError(const std::string& reason) { draft_errors_.Add({{"reason", reason}}).Increment(); }
  void OnTargetError(const std::string& reason) { target_errors_.Add({{"reason", reason}}).Increment(); }
  void OnUnexpectedDraft() { draft_.unexpected->Increment(); }
  void OnUnexpectedTarget() { target_.unexpected->Increment(); }
  // Sets, by address, whether each server can be used. Removes the series of all other servers.
  using ServersUp = std::map<std::string, bool>;
  void SetDrafts(const ServersUp& up) { draft_.SetUp(up); }
  void SetTargets(const ServersUp& up) { target_.SetUp(up); }
  // Whether a draft service is configured but none can be used.
  void SetDegraded(bool degraded) { degraded_.Set(degraded ? 1 : 0); }

  // Totals since the start of the process.
  v1::SpeculationTotals Totals() const;

 private:
  using Counter = prometheus::Counter;
  using Histogram = prometheus::Histogram;
  using Gauge = prometheus::Gauge;
  using Counters = prometheus::Family<Counter>;

  // Seconds, from a round on loopback to a long answer.
  static inline const Histogram::BucketBoundaries kRoundBuckets = {
      5e-5, 1e-4, 2e-4, 3e-4, 5e-4, 7.5e-4, 1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 1e-2,
      2e-2, 5e-2, 1e-1, 2e-1, 5e-1, 1,      2,    5,      10,   30,   60};
  static inline const Histogram::BucketBoundaries kRequestBuckets = {
      1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1, 2e-1, 5e-1, 1, 2, 5, 10, 30, 60, 120, 300};

  struct Server {
    Server(prometheus::Registry& registry, const std::string& name);
    void OnItem(Clock::duration waited, const v1::ItemTiming& timing);
    void SetUp(const ServersUp& up);

    Histogram* wire_seconds;
    Histogram* queue_seconds;
    prometheus::Family<Gauge>& up_family;
    std::map<std::string, Gauge*> up;  // by address; executor thread
    Counter* unexpected;
  };
  // Counters of a family, labelled with the numbers from 0. Executor thread.
  struct Numbered {
    Numbered(prometheus::Registry& registry, const char* name, const char* label, int count, const char* help)
        : family(CounterFamily(registry, name, help)), label(label) {
      (*this)[count - 1];
    }
    Counter& operator[](int i) {
      while (static_cast<int>(counters.size()) <= i) {
        counters.push_back(&family.Add({{label, std::to_string(counters.size())}}));
      }
      return *counters[i];
    }
    uint64_t Sum() const;

    Counters& family;
    const char* const label;
    std::vector<Counter*> counters;
  };
  struct DrafterCounters {
    Counter *drafts, *first_accepted, *drafted, *accepted;
  };
  // The time and the tokens of rounds with and without speculation, which show its gain. Rounds are grouped
  // by the number of generations in progress, since these share forward passes. A plain round counts only if
  // no other generation drafts either, since it would wait for the drafts. A round whose draft gave nothing
  // counts as speculative, since speculation cost that time. Prompt rounds do not count. Executor thread.
  struct SpeedCounters {
    Counter *seconds, *tokens;
  };
  // The largest number of generations in each group. The last group has all larger numbers.
  static constexpr std::array<int, 7> kMostRunning = {1, 2, 4, 8, 16, 32, 64};
  using ByRunning = std::array<SpeedCounters, kMostRunning.size() + 1>;

  static constexpr int kRanks = 8;  // ranks among siblings; higher ones count as the last

  void CountDraft(const RoundReport& round);
  void CountSpeed(const RoundReport& round);

  // Each registers one metric.
  Counter& Count(const char* name, const char* help) { return *AddCounter(registry_, name, help); }
  Gauge& Show(const char* name, const char* help) { return *AddGauge(registry_, name, help); }
  Gauge& ShowAsVllm(const std::string& name, const char* help) {
    return prometheus::BuildGauge().Name("vllm:" + name).Help(help).Register(registry_).Add({});
  }
  Histogram& Measure(const char* name, const char* help, const Histogram::BucketBoundaries& buckets) {
    return *AddHistogram(registry_, name, help, buckets);
  }

  prometheus::Registry& registry_;
  Counter& drafts_ =
      Count("spec_decode_num_drafts_total", "Rounds that verified at least one drafted token.");
  Counter& draft_tokens_ =
      Count("spec_decode_num_draft_tokens_total", "Drafted tokens that were sent to the target.");
  Counter& accepted_tokens_ = Count("spec_decode_num_accepted_tokens_total",
                                    "Drafted tokens that the target accepted and that are in an answer.");
  Counter& accepted_after_end_ = Count("spec_decode_num_accepted_tokens_after_end_total",
                                       "Drafted tokens that the target accepted behind the one that ended "
                                       "the text. No other count has them but the canary's.");
  Numbered accepted_at_{registry_, "spec_decode_num_accepted_tokens_per_pos_total", "position",
                        kMaxDraftTokens, "Accepted tokens by their position in the draft, from 0."};
  Numbered drafted_at_{registry_, "spec_decode_num_draft_tokens_per_pos_total", "position", kMaxDraftTokens,
                       "Drafted tokens by their position in the draft, from 0."};
  Counter& trees_ = Count("spec_decode_num_trees_total",
                          "Rounds that verified a tree: several drafted tokens for one position.");
  Numbered offered_of_rank_{registry_, "spec_decode_num_offered_tokens_per_rank_total", "rank", kRanks,
                            "Nodes of trees that follow an accepted one, or the last committed token, by "
                            "their place among their siblings, from 0."};
  Numbered accepted_of_rank_{registry_, "spec_decode_num_accepted_tokens_per_rank_total", "rank", kRanks,
                             "Of them, those that the target accepted."};
  std::map<std::pair<v1::DrafterKind, v1::Rule>, DrafterCounters> by_drafter_;
  std::map<v1::TokenKind, Counter*> emitted_;
  Counter& observed_accepted_ =
      Count("spec_decode_observed_accepted_tokens_total",
            "Accepted tokens of the rounds that expected_accepted_tokens covers. Observed over expected "
            "tends to 1 if the draft sampled from the q that it sent.");
  Counter& expected_accepted_ =
      Count("spec_decode_expected_accepted_tokens_total",
            "Sum over reached positions of sum_x min(p, q), exact rounds of the token rule only.");
  Counter& expected_accepted_variance_ = Count("spec_decode_expected_accepted_tokens_variance_total",
                                               "Variance that goes with the expected accepted tokens.");
  Counter& surprisal_ = Count("spec_decode_surprisal_nats_total",
                              "Sum over emitted tokens of -ln p(token). Over the entropy it tends to 1.");
  Counter& entropy_ =
      Count("spec_decode_entropy_nats_total", "Sum over the same positions of the entropy of p.");
  Counter& empty_residuals_ =
      Count("spec_decode_empty_residuals_total",
            "Corrections whose residual had no mass, so that p itself was drawn from.");
  Histogram& chosen_draft_tokens_ = Measure("spec_decode_chosen_draft_tokens",
                                            "K that was asked for, or that a draft chose that was to end by "
                                            "itself, in each round after the prompt's; 0: plain.",
                                            {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 31});
  Numbered ahead_rounds_{registry_, "run_ahead_rounds_total", "accepted", kMaxDraftTokens + 1,
                         "Rounds whose outcome was drafted for while they were verified, by the number of "
                         "drafted tokens that were accepted."};
  Numbered ahead_hits_{registry_, "run_ahead_hits_total", "accepted", kMaxDraftTokens + 1,
                       "Of them, those whose outcome was among what was drafted for."};
  Counter& ahead_branches_ = Count("run_ahead_branches_total", "Outcomes that were drafted for.");
  Counter& ahead_wasted_tokens_ = Count("run_ahead_wasted_tokens_total",
                                        "Tokens that the draft had reported for outcomes that did not come.");
  Counter& searches_ = Count("beam_searches_total", "Beam searches that found their texts.");
  Counter& search_rounds_ = Count("beam_search_rounds_total",
                                  "Calls of the target for beam searches; all texts of one count as one.");
  Counter& search_steps_ =
      Count("beam_search_steps_total",
            "Tokens by which beam searches took their texts on. Without a draft it is one a round.");
  Counter& rounds_ = Count("rounds_total", "Calls of the target that returned a verdict.");
  Counter& prompt_tokens_ = Count("prompt_tokens_total",
                                  "Tokens of prompts that were computed, once for all samples of a request.");
  Counter& generation_tokens_ = Count("generation_tokens_total", "Tokens in answers.");
  Gauge& running_ = Show("requests_running", "Requests in progress.");
  Gauge& waiting_ = Show("requests_waiting", "Requests that wait for their turn to begin.");
  Gauge& kv_used_ = Show("target_kv_used_ratio", "Share of KV blocks in use, the mean of the targets.");
  // The same values under vLLM's names, which the Gateway API's inference extension reads.
  Gauge& vllm_running_ = ShowAsVllm("num_requests_running", "As outrider_requests_running.");
  Gauge& vllm_waiting_ = ShowAsVllm("num_requests_waiting", "As outrider_requests_waiting.");
  Gauge& vllm_kv_used_ = ShowAsVllm("kv_cache_usage_perc", "As outrider_target_kv_used_ratio.");
  Counters& requests_ = CounterFamily(registry_, "requests_total", "Requests that ended, by status code.");
  Counters& http_refused_ =
      CounterFamily(registry_, "http_refused_total",
                    "HTTP requests that were refused before they reached the service, by HTTP status.");
  Histogram& first_token_seconds_ = Measure(
      "time_to_first_token_seconds",
      "From the request to its first committed token, in seconds; observed when it comes.", kRequestBuckets);
  Histogram& per_token_seconds_ =
      Measure("time_per_output_token_seconds",
              "Decoding time over tokens after the first, a sample, in seconds.", kRoundBuckets);
  Histogram& request_seconds_ = Measure(
      "e2e_request_latency_seconds",
      "From the request to its end, good or bad, in seconds; refusals do not count.", kRequestBuckets);
  std::map<std::string, Histogram*> round_seconds_;  // by kind
  Histogram& draft_seconds_ =
      Measure("round_draft_seconds", "Part of a round spent waiting for the proposal.", kRoundBuckets);
  Histogram& verify_seconds_ =
      Measure("round_verify_seconds", "Part of a round spent waiting for the verdict.", kRoundBuckets);
  ByRunning plain_, speculative_;
  int plain_in_a_row_ = 0;
  Server draft_{registry_, "draft"};
  Server target_{registry_, "target"};
  Counters& draft_errors_ =
      CounterFamily(registry_, "draft_errors_total", "Proposals that failed, by reason.");
  Counters& target_errors_ =
      CounterFamily(registry_, "target_errors_total", "Verifications that failed, by reason.");
  Gauge& degraded_ =
      Show("degraded", "1 while a draft service is configured but cannot be used: decoding is plain.");
};

}  // namespace outrider
