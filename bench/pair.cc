// One stream of a pair, through all three services: plain against speculative decoding, acceptance by
// position, and where the time of a round goes. Modes take turns prompt by prompt, so that a machine whose
// speed drifts does not favour one; what counts is the ratio within the run.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/pair_helpers.h"
#include "common/obs/flags.h"

namespace outrider {
namespace {

struct Flags {
  LocalServicesOptions services;
  std::string prompts = "bench/prompts.json";
  std::string json;
  int max_tokens = 200;
  int max_k = 6;
  int repeats = 3;
};

// What one mode did over all prompts.
struct Tally {
  int64_t tokens = 0;
  double seconds = 0;
  v1::SpeculationStats stats;

  double Rate() const { return static_cast<double>(tokens) / seconds; }
};

// Microseconds a round.
struct Split {
  int64_t rounds = 0;
  double draft_server = 0, draft_wire = 0, verify_server = 0, verify_wire = 0, coordinator = 0, total = 0;
};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void Add(std::vector<double>& sums, const google::protobuf::RepeatedField<uint64_t>& counts) {
  if (static_cast<int>(sums.size()) < counts.size()) sums.resize(counts.size());
  for (int i = 0; i < counts.size(); ++i) sums[i] += static_cast<double>(counts[i]);
}

class PairBench {
 public:
  PairBench(const Client& client, const Flags& flags)
      : client_(client), flags_(flags), prompts_(LoadPrompts(flags.prompts)) {}

  absl::StatusOr<nlohmann::ordered_json> Run(double temperature) {
    std::map<int, Tally> tallies;
    std::vector<std::vector<double>> ratios(flags_.max_k + 1);
    std::vector<double> drafted, accepted;
    for (int repeat = 0; repeat < flags_.repeats; ++repeat) {
      for (const std::string& prompt : prompts_) {
        double plain = 0;
        for (int k = 0; k <= flags_.max_k; ++k) {
          auto answer =
              client_.Generate(MakeRequest(prompt, temperature, k, repeat + 1, flags_.max_tokens), nullptr);
          if (!answer.ok()) return answer.status();
          const v1::Finish& finish = answer->finish;
          // The first token belongs to the prompt.
          const double tokens = finish.usage().completion_tokens() - 1.0;
          const double rate = tokens / finish.usage().decode_seconds();
          if (k == 0) plain = rate;
          ratios[k].push_back(rate / plain);
          Tally& tally = tallies[k];
          tally.tokens += static_cast<int64_t>(tokens);
          tally.seconds += finish.usage().decode_seconds();
          tally.stats.set_rounds(tally.stats.rounds() + finish.speculation().rounds() - 1);
          tally.stats.set_drafted(tally.stats.drafted() + finish.speculation().drafted());
          tally.stats.set_accepted(tally.stats.accepted() + finish.speculation().accepted());
          if (k == flags_.max_k) {
            Add(drafted, finish.speculation().drafted_per_position());
            Add(accepted, finish.speculation().accepted_per_position());
          }
        }
      }
    }
    absl::PrintF("\ntemperature %g\n%3s %10s %10s %12s %12s\n", temperature, "K", "tokens/s", "vs plain",
                 "acceptance", "tokens/call");
    nlohmann::ordered_json result;
    result["temperature"] = temperature;
    int best = 0;
    for (const auto& [k, tally] : tallies) {
      const double ratio = Median(ratios[k]);
      if (ratio > Median(ratios[best])) best = k;
      const double acceptance = tally.stats.drafted() == 0 ? 0
                                                           : static_cast<double>(tally.stats.accepted()) /
                                                                 static_cast<double>(tally.stats.drafted());
      const double per_call = static_cast<double>(tally.tokens) / static_cast<double>(tally.stats.rounds());
      absl::PrintF("%3d %10.0f %10.2f %12.3f %12.2f\n", k, tally.Rate(), ratio, acceptance, per_call);
      result["modes"].push_back({{"k", k},
                                 {"tokens_per_second", tally.Rate()},
                                 {"ratio_to_plain", ratio},
                                 {"acceptance_rate", acceptance},
                                 {"tokens_per_call", per_call}});
    }
    absl::PrintF("acceptance by position, K = %d:", flags_.max_k);
    for (size_t i = 0; i < drafted.size(); ++i) {
      absl::PrintF(" %.3f", accepted[i] / drafted[i]);
      result["acceptance_by_position"].push_back(accepted[i] / drafted[i]);
    }
    absl::PrintF("\n");
    result["best_k"] = best;
    for (int k : {0, best}) {
      auto split = TimeSplit(temperature, k);
      if (!split.ok()) return split.status();
      result["round_microseconds"].push_back(*split);
    }
    return result;
  }

 private:
  // Mean over the rounds of traced generations; the round of the prompt is left out.
  absl::StatusOr<nlohmann::ordered_json> TimeSplit(double temperature, int k) const {
    Split split;
    for (const std::string& prompt : prompts_) {
      v1::GenerateRequest request = MakeRequest(prompt, temperature, k, 1, flags_.max_tokens);
      request.set_trace(true);
      auto answer = client_.Generate(request, [&](const v1::GenerateResponse& chunk) {
        const v1::RoundTrace& trace = chunk.trace();
        if (trace.round() < 2) return;
        ++split.rounds;
        split.draft_server += trace.draft_compute_us();
        split.draft_wire += trace.draft_us() - trace.draft_compute_us();
        split.verify_server += trace.verify_compute_us();
        split.verify_wire += trace.verify_us() - trace.verify_compute_us();
        split.coordinator += trace.round_us() - trace.draft_us() - trace.verify_us();
        split.total += trace.round_us();
      });
      if (!answer.ok()) return answer.status();
    }
    const double n = static_cast<double>(split.rounds);
    absl::PrintF(
        "a round at K = %d, us: draft %.0f + wire %.0f, verify %.0f + wire %.0f, coordinator %.0f, in all "
        "%.0f\n",
        k, split.draft_server / n, split.draft_wire / n, split.verify_server / n, split.verify_wire / n,
        split.coordinator / n, split.total / n);
    return nlohmann::ordered_json{{"k", k},
                                  {"draft_server", split.draft_server / n},
                                  {"draft_wire", split.draft_wire / n},
                                  {"verify_server", split.verify_server / n},
                                  {"verify_wire", split.verify_wire / n},
                                  {"coordinator", split.coordinator / n},
                                  {"total", split.total / n}};
  }

  const Client& client_;
  const Flags& flags_;
  const std::vector<std::string> prompts_;
};

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Measures plain against speculative decoding of a pair, one stream.", "bench_pair");
  AddPairFlags(app, flags.services, flags.prompts);
  app.add_option("--max-tokens", flags.max_tokens, "a generation")
      ->check(CLI::Range(16, 4096))
      ->capture_default_str();
  app.add_option("--max-k", flags.max_k, "largest K")->check(CLI::Range(1, 16))->capture_default_str();
  app.add_option("--repeats", flags.repeats, "times each prompt is run")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option("--json", flags.json, "file for the results");
  UseOneLineErrors(app);
  CLI11_PARSE(app, argc, argv);

  auto pair = RunningPair::Start(flags.services);
  if (!pair.ok()) return Fail("bench_pair", pair.status());
  auto report = BeginReport(pair->client);
  if (!report.ok()) return Fail("bench_pair", report.status());
  PairBench bench(pair->client, flags);
  for (const double temperature : {0.0, 1.0}) {
    auto result = bench.Run(temperature);
    if (!result.ok()) return Fail("bench_pair", result.status());
    (*report)["results"].push_back(*std::move(result));
  }
  if (!flags.json.empty()) std::ofstream(flags.json) << report->dump(1) << "\n";
  return 0;
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) { return outrider::Main(argc, argv); }
