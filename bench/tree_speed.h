// The speed of chains and trees side by side.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/turns.h"

namespace outrider {

inline size_t BestChain(const Turns& turns, const std::vector<TreeMode>& modes) {
  size_t best = 0;
  for (size_t i = 0; i < modes.size(); ++i) {
    if (modes[i].is_chain() && (best == 0 || turns.Ratio(i, 0).median > turns.Ratio(best, 0).median))
      best = i;
  }
  return best;
}

// Prints and returns the table. The first mode is plain decoding, the last two are the policy's.
inline nlohmann::ordered_json ReportTreeSpeed(const Turns& turns, const std::vector<TreeMode>& modes,
                                              double temperature) {
  const size_t chain = BestChain(turns, modes);
  absl::PrintF("\ntemperature %g, medians of %d turns (least-largest)\n%-13s %9s %18s %18s %12s %6s\n",
               temperature, static_cast<int>(turns.of(0).rates.size()), "", "tokens/s", "vs plain",
               absl::StrCat("vs ", modes[chain].name), "tokens/call", "trees");
  nlohmann::ordered_json report = {{"temperature", temperature}, {"best_chain", modes[chain].name}};
  for (size_t i = 0; i < modes.size(); ++i) {
    const TurnsOfMode& result = turns.of(i);
    const Spread rate = Spread::Of(result.rates);
    const Spread to_plain = turns.Ratio(i, 0), to_chain = turns.Ratio(i, chain);
    absl::PrintF("%-13s %9.0f %18s %18s %12.2f %6.2f\n", modes[i].name, rate.median, to_plain.Text(),
                 to_chain.Text(), result.tally.tokens_per_call(), result.tree_share());
    report["modes"].push_back({{"mode", modes[i].name},
                               {"tokens_per_second", rate.Json()},
                               {"ratio_to_plain", to_plain.Json()},
                               {"ratio_to_best_chain", to_chain.Json()},
                               {"tokens_per_call", result.tally.tokens_per_call()},
                               {"share_of_trees", result.tree_share()}});
  }
  const Spread to_policy = turns.Ratio(modes.size() - 1, modes.size() - 2);
  absl::PrintF("auto: %s of the policy with chains alone\n", to_policy.Text());
  report["auto_to_policy"] = to_policy.Json();
  return report;
}

}  // namespace outrider
