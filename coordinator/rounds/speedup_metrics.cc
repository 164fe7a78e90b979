#include "coordinator/rounds/speedup_metrics.h"

#include <algorithm>
#include <string>

#include "common/obs/metric_families.h"

namespace outrider {

SpeedupMetrics::SpeedupMetrics(prometheus::Registry& registry) {
  auto& seconds =
      CounterFamily(registry, "spec_decode_round_seconds_total",
                    "Time of rounds, in seconds, by mode (plain: nobody drafted; speculative: a draft "
                    "was wanted) and by generations in progress, up to that many.");
  auto& tokens =
      CounterFamily(registry, "spec_decode_round_tokens_total", "Tokens that the same rounds emitted.");
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

void SpeedupMetrics::OnRound(const RoundReport& round) {
  if (round.prefill()) return;
  plain_in_a_row_ = round.speculative() ? 0 : std::min(plain_in_a_row_ + 1, round.running);
  // With less, a generation has drafted since its turn was last here.
  if (!round.speculative() && plain_in_a_row_ < round.running) return;
  const auto group = std::lower_bound(kMostRunning.begin(), kMostRunning.end(), round.running);
  ByRunning& counters = round.speculative() ? speculative_ : plain_;
  const Counters& of = counters[static_cast<size_t>(group - kMostRunning.begin())];
  of.seconds->Increment(Seconds(round.times.round));
  of.tokens->Increment(round.emitted);
}

}  // namespace outrider
