// The coordinator's metrics. Names and meaning follow vLLM where it has them.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/event.h"
#include "outrider/v1/inference.pb.h"
#include "outrider/v1/target.pb.h"

namespace outrider {

// Where the time of a round went.
struct RoundTimes {
  Clock::duration draft{};      // waiting for the proposal
  v1::ItemTiming draft_server;  // what of it was the server's
  Clock::duration verify{};     // waiting for the verdict
  v1::ItemTiming verify_server;
  Clock::duration round{};
};

// From receipt to answer.
inline uint32_t ServerMicroseconds(const v1::ItemTiming& timing) {
  return timing.queue_us() + timing.compute_us();
}

// Thread-safe.
class Metrics {
 public:
  explicit Metrics(prometheus::Registry& registry);

  // `drafter` matters only if there was a draft.
  void OnRound(v1::DrafterKind drafter, int drafted, const v1::Verdict& verdict, v1::Rule rule,
               const RoundTimes& times);
  void OnEmitted(const v1::GenerateResponse& chunk);
  void OnRequestStart() { running_->Increment(); }
  // `code` is "OK" or an absl status code's name.
  void OnRequestEnd(const std::string& code);
  void OnFinish(const v1::Finish& finish, double total_seconds);
  // An item that a server refused or did not answer, by reason.
  void OnDraftError(const std::string& reason) { draft_errors_.Add({{"reason", reason}}).Increment(); }
  void OnTargetError(const std::string& reason) { target_errors_.Add({{"reason", reason}}).Increment(); }
  void SetUp(bool draft, bool target, bool degraded);

  int running() const { return static_cast<int>(running_->Value()); }

 private:
  prometheus::Counter& PerPosition(std::vector<prometheus::Counter*>& counters,
                                   prometheus::Family<prometheus::Counter>& family, int position);

  prometheus::Counter* drafts_;
  prometheus::Counter* draft_tokens_;
  prometheus::Counter* accepted_tokens_;
  prometheus::Family<prometheus::Counter>& accepted_per_position_;
  prometheus::Family<prometheus::Counter>& drafted_per_position_;
  std::vector<prometheus::Counter*> accepted_at_, drafted_at_;  // executor thread
  struct DrafterCounters {
    prometheus::Counter* drafted;
    prometheus::Counter* accepted;
  };
  std::map<v1::DrafterKind, DrafterCounters> by_drafter_;
  prometheus::Family<prometheus::Counter>& emitted_;
  prometheus::Counter* expected_accepted_;
  prometheus::Counter* expected_accepted_variance_;
  prometheus::Counter* surprisal_;
  prometheus::Counter* entropy_;
  prometheus::Counter* empty_residuals_;
  prometheus::Counter* rounds_;
  prometheus::Gauge* running_;
  prometheus::Family<prometheus::Counter>& requests_;
  prometheus::Histogram* first_token_seconds_;
  prometheus::Histogram* per_token_seconds_;
  prometheus::Histogram* request_seconds_;
  prometheus::Histogram* round_seconds_;
  prometheus::Histogram* draft_seconds_;
  prometheus::Histogram* verify_seconds_;
  prometheus::Family<prometheus::Histogram>& wire_seconds_;
  prometheus::Histogram* draft_wire_seconds_;
  prometheus::Histogram* verify_wire_seconds_;
  prometheus::Family<prometheus::Counter>& draft_errors_;
  prometheus::Family<prometheus::Counter>& target_errors_;
  prometheus::Gauge* draft_up_;
  prometheus::Gauge* target_up_;
  prometheus::Gauge* degraded_;
};

}  // namespace outrider
