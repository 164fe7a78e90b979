// Tells all who keep account of rounds about each of them.
#pragma once

#include "coordinator/rounds/draft_length_policy.h"
#include "coordinator/rounds/metrics.h"
#include "coordinator/rounds/round_report.h"

namespace outrider {

// They are the metrics, the policy that learns from times and acceptance, the
// log at level debug, and the client, if it asked for a trace. Executor thread.
class RoundObserver {
 public:
  // Both outlive this.
  RoundObserver(Metrics* metrics, DraftLengthPolicy* policy) : metrics_(metrics), policy_(policy) {}

  // `chunk` is what the round sends; it gets the trace.
  void OnRound(const RoundReport& report, v1::GenerateResponse* chunk);

 private:
  Metrics* const metrics_;
  DraftLengthPolicy* const policy_;
};

}  // namespace outrider
