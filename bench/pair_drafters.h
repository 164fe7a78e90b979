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

// Speeds of all drafters with chains and trees, in turns with plain decoding; then, for the fastest chain of
// each, where a round's time goes and what goes over the wire. Prints tables and returns them.
absl::StatusOr<nlohmann::ordered_json> CompareDrafters(const RunningPair& pair,
                                                       const LocalServicesOptions& services,
                                                       const DraftersFlags& flags,
                                                       const std::vector<std::string>& prompts,
                                                       double temperature);

// Resident memory of the target without heads and with each folder of them, and of the draft, after a
// generation. Starts them anew each time.
absl::StatusOr<nlohmann::ordered_json> MeasureMemory(LocalServicesOptions services,
                                                     const std::string& prompt);

}  // namespace outrider
