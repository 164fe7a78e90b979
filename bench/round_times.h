// The parts of a round's time, and the costs of the services.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "bench/pair_helpers.h"
#include "bench/process_costs.h"

namespace outrider {

// Means over rounds: times in microseconds, and the costs of the three services.
struct RoundTimes {
  int k = 0;
  double rounds = 0, tokens = 0;
  ProcessCosts costs = {};
  double draft_server = 0, draft_wire = 0, verify_server = 0, verify_wire = 0, coordinator = 0, total = 0;
};

// Averages over those rounds of traced generations that have k drafted tokens, without the prompt's
// round.
inline absl::StatusOr<RoundTimes> MeasureRoundTimes(
    const Client& client, const std::vector<std::string>& prompts, int k,
    absl::FunctionRef<v1::GenerateRequest(const std::string& prompt)> make_request) {
  RoundTimes times{.k = k};
  const ProcessCosts before = CostsOfChildren();
  double all_rounds = 0;
  for (const std::string& prompt : prompts) {
    v1::GenerateRequest request = make_request(prompt);
    request.set_trace(true);
    auto answer = client.Generate(request, [&](const v1::GenerateResponse& chunk) {
      const v1::RoundTrace& trace = chunk.trace();
      ++all_rounds;
      times.tokens += chunk.tokens_size();
      if (trace.round() < 2 || trace.drafted_size() < k) return;
      ++times.rounds;
      times.draft_server += trace.draft_compute_us();
      times.draft_wire += trace.draft_us() - trace.draft_compute_us();
      times.verify_server += trace.verify_compute_us();
      times.verify_wire += trace.verify_us() - trace.verify_compute_us();
      times.coordinator += trace.round_us() - trace.draft_us() - trace.verify_us();
      times.total += trace.round_us();
    });
    if (!answer.ok()) return answer.status();
  }
  times.costs = CostsOfChildren() - before;
  times.costs.voluntary /= all_rounds;
  times.costs.involuntary /= all_rounds;
  for (double* sum : {&times.draft_server, &times.draft_wire, &times.verify_server, &times.verify_wire,
                      &times.coordinator, &times.total}) {
    *sum /= times.rounds;
  }
  return times;
}

inline nlohmann::ordered_json PrintRoundTimes(const RoundTimes& times) {
  absl::PrintF(
      "a round at K = %d, us: draft %.0f + wire %.0f, verify %.0f + wire %.0f, coordinator %.0f, in all "
      "%.0f\n",
      times.k, times.draft_server, times.draft_wire, times.verify_server, times.verify_wire,
      times.coordinator, times.total);
  const double cpu_microseconds = times.costs.cpu_seconds * 1e6 / times.tokens;
  absl::PrintF("  and %.1f context switches, %.1f more against a thread's will; CPU time %.0f us a token\n",
               times.costs.voluntary, times.costs.involuntary, cpu_microseconds);
  return {{"k", times.k},
          {"draft_server", times.draft_server},
          {"draft_wire", times.draft_wire},
          {"verify_server", times.verify_server},
          {"verify_wire", times.verify_wire},
          {"coordinator", times.coordinator},
          {"total", times.total},
          {"voluntary_switches", times.costs.voluntary},
          {"involuntary_switches", times.costs.involuntary},
          {"cpu_microseconds_per_token", cpu_microseconds}};
}

}  // namespace outrider
