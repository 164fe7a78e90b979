// All drafters of a pair side by side, for one stream.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/pair_helpers.h"
#include "bench/turns.h"

namespace outrider {

struct DraftersFlags {
  TurnsFlags turns;
  int max_k = 5;
  std::vector<std::string> trees = {"2x2x1@3", "budget:8@4"};  // SHAPE@DEPTH
};

// Measures the speeds of all drafters with chains and trees, in turns with plain decoding; then, for each
// drafter's fastest chain, the parts of a round's time and its bytes. Prints tables and returns them.
absl::StatusOr<nlohmann::ordered_json> CompareDrafters(const RunningPair& pair,
                                                       const LocalServicesOptions& services,
                                                       const DraftersFlags& flags,
                                                       const std::vector<std::string>& prompts,
                                                       double temperature);

// Measures the resident memory of the target without heads and with each folder of heads, and of the draft,
// after a generation. Restarts them each time.
absl::StatusOr<nlohmann::ordered_json> MeasureMemory(LocalServicesOptions services,
                                                     const std::string& prompt);

}  // namespace outrider
