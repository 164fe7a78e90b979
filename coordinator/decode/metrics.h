// The coordinator's metrics. Names and meaning follow vLLM where it has them.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/generation/generation.h"
#include "coordinator/generation/round_report.h"
#include "coordinator/generation/round_tally.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// What speculation gains: the time that rounds take for their tokens, with and without it. Only like is
// compared with like. Rounds are grouped by the number of generations in progress, since these share forward
// passes. A plain round counts only if none of the others drafts either: it would wait for theirs. A round
// whose draft was asked and gave nothing counts as speculative, since speculation cost that time. Prompt
// rounds do not count.
//
// One thread.
class SpeedupMetrics {
 public:
  explicit SpeedupMetrics(prometheus::Registry& registry);

  void OnRound(const RoundReport& round);

 private:
  struct Counters {
    prometheus::Counter* seconds = nullptr;
    prometheus::Counter* tokens = nullptr;
  };
  // The largest number of generations of each group; the last group has the rest.
  static constexpr std::array<int, 7> kMostRunning = {1, 2, 4, 8, 16, 32, 64};
  using ByRunning = std::array<Counters, kMostRunning.size() + 1>;

  ByRunning plain_, speculative_;
  int plain_in_a_row_ = 0;
};

// Thread-safe.
class Metrics {
 public:
  // `max_requests` is the limit of requests_running.
  Metrics(prometheus::Registry& registry, int max_requests);

  void OnRound(const RoundReport& round);
  void OnEmitted(const v1::GenerateResponse& chunk);
  // Requests in progress, and those that wait for their turn.
  void SetRequests(size_t running, size_t waiting);
  // The prompt is computed: the first token came `seconds` after the request. Once a request.
  void OnFirstToken(double seconds, size_t prompt_tokens);
  // A sample has ended, well or not.
  void OnSampleEnd(const Generation::Progress& progress);
  // A search has ended that asked the target `rounds` times, for `steps` steps.
  void OnSearch(uint64_t rounds, int steps);
  // A request that was let in has ended, `seconds` after it came.
  void OnRequestTime(double seconds) { request_seconds_->Observe(seconds); }
  // Any request. `code` is "OK" or an absl status code's name.
  void OnRequestEnd(const std::string& code) { requests_.Add({{"code", code}}).Increment(); }
  // An HTTP request that was refused before it reached the service.
  void OnHttpRefused(int status) { http_refused_.Add({{"code", std::to_string(status)}}).Increment(); }
  // An item that a server refused or did not answer, by reason.
  void OnDraftError(const std::string& reason) { draft_errors_.Add({{"reason", reason}}).Increment(); }
  void OnTargetError(const std::string& reason) { target_errors_.Add({{"reason", reason}}).Increment(); }
  // An answer that nobody waits for.
  void OnUnexpectedDraft() { draft_.unexpected->Increment(); }
  void OnUnexpectedTarget() { target_.unexpected->Increment(); }
  // The servers by address, and whether they can be used. Removes the series of all others.
  using ServersUp = std::map<std::string, bool>;
  void SetDrafts(const ServersUp& up) { draft_.SetUp(up); }
  void SetTargets(const ServersUp& up) { target_.SetUp(up); }
  // Whether a draft service is configured but none can be used.
  void SetDegraded(bool degraded) { degraded_->Set(degraded ? 1 : 0); }

  // Totals since the start of the process.
  v1::SpeculationTotals Totals() const;

 private:
  // The metrics of one of the two servers.
  struct Server {
    Server(prometheus::Registry& registry, const std::string& name);
    void OnItem(Clock::duration waited, const v1::ItemTiming& timing);
    void SetUp(const ServersUp& up);

    prometheus::Histogram* wire_seconds;
    prometheus::Histogram* queue_seconds;
    prometheus::Family<prometheus::Gauge>& up_family;
    std::map<std::string, prometheus::Gauge*> up;  // by address; executor thread
    prometheus::Counter* unexpected;
  };
  // The series of the round's kind.
  prometheus::Histogram* RoundSeconds(const RoundReport& round) const;
  void CountDraft(const RoundReport& round);
  void CountTree(const RoundTally& tally);
  void CountAhead(const RoundReport& round);
  prometheus::Counter& PerPosition(std::vector<prometheus::Counter*>& counters,
                                   prometheus::Family<prometheus::Counter>& family, int position);

  prometheus::Counter* drafts_;
  prometheus::Counter* draft_tokens_;
  prometheus::Counter* accepted_tokens_;
  prometheus::Counter* accepted_after_end_;
  prometheus::Family<prometheus::Counter>& accepted_per_position_;
  prometheus::Family<prometheus::Counter>& drafted_per_position_;
  std::vector<prometheus::Counter*> accepted_at_, drafted_at_;  // executor thread
  prometheus::Counter* trees_;
  // By rank among siblings; higher ranks count as the last.
  static constexpr size_t kRanks = 8;
  std::vector<prometheus::Counter*> offered_of_rank_, accepted_of_rank_;
  struct DrafterCounters {
    prometheus::Counter* drafts;
    prometheus::Counter* first_accepted;
    prometheus::Counter* drafted;
    prometheus::Counter* accepted;
  };
  std::map<std::pair<v1::DrafterKind, v1::Rule>, DrafterCounters> by_drafter_;
  std::map<v1::TokenKind, prometheus::Counter*> emitted_;
  prometheus::Counter* observed_accepted_;
  prometheus::Counter* expected_accepted_;
  prometheus::Counter* expected_accepted_variance_;
  prometheus::Counter* surprisal_;
  prometheus::Counter* entropy_;
  prometheus::Counter* empty_residuals_;
  prometheus::Histogram* chosen_draft_tokens_;
  prometheus::Family<prometheus::Counter>& ahead_rounds_;
  prometheus::Family<prometheus::Counter>& ahead_hits_;
  std::vector<prometheus::Counter*> ahead_rounds_at_, ahead_hits_at_;  // executor thread
  prometheus::Counter* ahead_branches_;
  prometheus::Counter* ahead_wasted_tokens_;
  prometheus::Counter* searches_;
  prometheus::Counter* search_rounds_;
  prometheus::Counter* search_steps_;
  prometheus::Counter* rounds_;
  prometheus::Counter* prompt_tokens_;
  prometheus::Counter* generation_tokens_;
  prometheus::Gauge* running_;
  prometheus::Gauge* waiting_;
  prometheus::Family<prometheus::Counter>& requests_;
  prometheus::Family<prometheus::Counter>& http_refused_;
  prometheus::Histogram* first_token_seconds_;
  prometheus::Histogram* per_token_seconds_;
  prometheus::Histogram* request_seconds_;
  prometheus::Histogram* prefill_round_seconds_;
  prometheus::Histogram* plain_round_seconds_;
  prometheus::Histogram* speculative_round_seconds_;
  prometheus::Histogram* draft_failed_round_seconds_;
  prometheus::Histogram* draft_seconds_;
  prometheus::Histogram* verify_seconds_;
  SpeedupMetrics speedup_;
  Server draft_;
  Server target_;
  prometheus::Family<prometheus::Counter>& draft_errors_;
  prometheus::Family<prometheus::Counter>& target_errors_;
  prometheus::Gauge* degraded_;
};

}  // namespace outrider
