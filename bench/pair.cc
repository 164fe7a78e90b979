// Measures one stream of a pair through all three services: plain decoding, speculative decoding with every
// K, with the policy's K and with n-grams; the expectation of Theorem 3.8 for each K and the speed of an
// oracle; acceptance by position; and where the time of a round goes. Modes take turns prompt by prompt, so
// that drifting machine speed favours none of them. The result is the ratio within the run.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/pair_drafters.h"
#include "bench/pair_helpers.h"
#include "bench/round_times.h"
#include "bench/run_benchmark.h"
#include "bench/spread.h"
#include "bench/tally.h"
#include "common/spec/analysis.h"

namespace outrider {
namespace {

struct Flags {
  LocalServicesOptions services;
  PromptFlags prompts;
  int max_tokens = 200;
  int max_k = 8;
  int repeats = 3;
  bool drafters = false;
  std::vector<std::string> trees = DraftersFlags().trees;
};

struct Mode {
  std::string name;
  std::optional<int> k;  // nullopt: the coordinator chooses
  v1::DrafterKind drafter = v1::DRAFTER_KIND_MODEL;
};

// The result of one mode over all prompts.
struct Result {
  SpeculationTally tally;
  double seconds = 0;
  std::vector<double> ratios;  // relative to plain decoding of the same prompt
  int other_tokens = 0;        // answers that differ from plain decoding; must be 0 if greedy

  double Rate() const { return tally.tokens / seconds; }
};

// Adds a prompt to the result of the oracle. The oracle takes the rounds of the run with the largest K, but
// knows how many tokens of each will be accepted and drafts no more: the oracle for gamma of Leviathan et al.
// (arXiv 2211.17192), with the measured acceptance and time of a round at each K. `of_k` are the results of
// the fixed K for this prompt only, from K = 0 on.
void AddOracle(const std::vector<Result>& of_k, Result& oracle) {
  const SpeculationTally& longest = of_k.back().tally;
  const auto rounds_accepting = [&](size_t tokens) {  // at least this many
    if (tokens == 0) return longest.rounds;
    return tokens <= longest.accepted_at.size() ? longest.accepted_at[tokens - 1] : 0.0;
  };
  double seconds = 0;
  for (size_t k = 0; k < of_k.size(); ++k) {
    const double rounds = rounds_accepting(k) - rounds_accepting(k + 1);
    seconds += rounds * of_k[k].seconds / of_k[k].tally.rounds;
  }
  oracle.tally.tokens += longest.tokens;
  oracle.tally.rounds += longest.rounds;
  oracle.seconds += seconds;
  oracle.ratios.push_back(longest.tokens / seconds / of_k[0].Rate());
}

class PairBench {
 public:
  PairBench(const Client& client, const Flags& flags, std::vector<std::string> prompts)
      : client_(client), flags_(flags), prompts_(std::move(prompts)) {
    modes_.push_back({"plain", 0});
    for (int k = 1; k <= flags.max_k; ++k) modes_.push_back({absl::StrFormat("K = %d", k), k});
    modes_.push_back({"policy", std::nullopt});
    modes_.push_back({"n-gram", std::nullopt, v1::DRAFTER_KIND_NGRAM});
  }

  absl::StatusOr<nlohmann::ordered_json> Run(double temperature) {
    std::vector<Result> results(modes_.size());
    Result oracle;
    // A warm-up: the policy learns costs on first use.
    for (const Mode& mode : modes_) {
      if (mode.k) continue;
      if (auto warm = Generate(mode, 0, temperature, 1); !warm.ok()) return warm.status();
    }
    for (int repeat = 1; repeat <= flags_.repeats; ++repeat) {
      for (size_t prompt = 0; prompt < prompts_.size(); ++prompt) {
        std::vector<Result> here(modes_.size());
        std::vector<std::vector<uint32_t>> tokens(modes_.size());
        for (size_t i = 0; i < modes_.size(); ++i) {
          // Alternately forwards and backwards, so that a drift cancels out.
          const size_t mode = prompt % 2 == 0 ? i : modes_.size() - 1 - i;
          auto answer = Generate(modes_[mode], prompt, temperature, repeat);
          if (!answer.ok()) return answer.status();
          here[mode].tally.Add(answer->finish);
          here[mode].seconds = answer->finish.usage().decode_seconds();
          results[mode].tally.Add(answer->finish);
          results[mode].seconds += answer->finish.usage().decode_seconds();
          tokens[mode].clear();
          for (const v1::GeneratedToken& token : answer->tokens) tokens[mode].push_back(token.id());
        }
        for (size_t i = 0; i < modes_.size(); ++i) {
          results[i].other_tokens += tokens[i] != tokens[0];
          results[i].ratios.push_back(here[i].Rate() / here[0].Rate());
        }
        here.resize(static_cast<size_t>(flags_.max_k) + 1);
        AddOracle(here, oracle);
      }
    }
    return Report(temperature, results, oracle);
  }

 private:
  absl::StatusOr<Completion> Generate(const Mode& mode, size_t prompt, double temperature, int seed) const {
    v1::GenerateRequest request = MakeRequest(prompts_[prompt], temperature, mode.k.value_or(0),
                                              static_cast<uint64_t>(seed), flags_.max_tokens);
    request.mutable_speculation()->set_drafter(mode.drafter);
    if (!mode.k) LeaveKToPolicy(request);
    auto answer = client_.Generate(request, nullptr);
    if (!answer.ok()) return answer.status();
    return answer;
  }

  absl::StatusOr<nlohmann::ordered_json> Report(double temperature, const std::vector<Result>& results,
                                                const Result& oracle) const {
    int best = 1;
    for (int k = 2; k <= flags_.max_k; ++k) {
      if (Median(results[k].ratios) > Median(results[best].ratios)) best = k;
    }
    const auto plain_times = RoundTimesOf(temperature, 0);
    if (!plain_times.ok()) return plain_times.status();
    const auto best_times = RoundTimesOf(temperature, best);
    if (!best_times.ok()) return best_times.status();
    const double c = best_times->draft_server / best / plain_times->verify_server;

    absl::PrintF("\ntemperature %g, c = %.3f\n%-8s %9s %9s %12s %7s %11s %12s\n", temperature, c, "",
                 "tokens/s", "vs plain", "Theorem 3.8", "alpha", "acceptance", "tokens/call");
    nlohmann::ordered_json report = {{"temperature", temperature}, {"c", c}};
    for (size_t i = 0; i < modes_.size(); ++i) {
      report["modes"].push_back(PrintMode(modes_[i], results[i], c));
    }
    absl::PrintF("%-8s %9.0f %9.2f %41s %12.2f\n", "oracle", oracle.Rate(), Median(oracle.ratios), "",
                 oracle.tally.tokens_per_call());
    report["oracle"] = {{"tokens_per_second", oracle.Rate()}, {"ratio_to_plain", Median(oracle.ratios)}};
    report["best_k"] = best;
    if (temperature == 0) {
      int other_tokens = 0;
      for (const Result& result : results) other_tokens += result.other_tokens;
      absl::PrintF("answers with other tokens than plain decoding: %d\n", other_tokens);
      report["other_tokens_than_plain"] = other_tokens;
    }

    const double policy = Median(results[modes_.size() - 2].ratios);
    // Plain decoding counts as a fixed K.
    const double policy_to_best = policy / std::max(Median(results[best].ratios), 1.0);
    const double policy_to_oracle = policy / Median(oracle.ratios);
    absl::PrintF("policy: %.3f of the best fixed K, %.3f of the oracle\n", policy_to_best, policy_to_oracle);
    report["policy_to_best"] = policy_to_best;
    report["policy_to_oracle"] = policy_to_oracle;

    const SpeculationTally& longest = results[flags_.max_k].tally;
    absl::PrintF("acceptance by position, K = %d:", flags_.max_k);
    for (size_t i = 0; i < longest.drafted_at.size(); ++i) {
      const double share = longest.accepted_at[i] / longest.drafted_at[i];
      absl::PrintF(" %.3f", share);
      report["acceptance_by_position"].push_back(share);
    }
    absl::PrintF("\n");
    for (const RoundTimes& times : {*plain_times, *best_times}) {
      report["round_microseconds"].push_back(PrintRoundTimes(times));
    }
    return report;
  }

  static nlohmann::ordered_json PrintMode(const Mode& mode, const Result& result, double c) {
    const SpeculationTally& tally = result.tally;
    nlohmann::ordered_json row = {{"mode", mode.name}};
    // Theorem 3.8 is about a fixed number of drafted tokens.
    std::string expected;
    if (mode.k) {
      const double gain = WalltimeGain(std::min(tally.alpha(), 0.999), *mode.k, c);
      expected = absl::StrFormat("%.2f", gain);
      row.update({{"k", *mode.k}, {"expected_ratio", gain}});
    }
    row.update({{"tokens_per_second", result.Rate()},
                {"ratio_to_plain", Median(result.ratios)},
                {"alpha", tally.alpha()},
                {"acceptance_rate", tally.acceptance_rate()},
                {"tokens_per_call", tally.tokens_per_call()}});
    absl::PrintF("%-8s %9.0f %9.2f %12s %7.3f %11.3f %12.2f\n", mode.name, result.Rate(),
                 Median(result.ratios), expected, tally.alpha(), tally.acceptance_rate(),
                 tally.tokens_per_call());
    return row;
  }

  absl::StatusOr<RoundTimes> RoundTimesOf(double temperature, int k) const {
    return MeasureRoundTimes(client_, prompts_, k, [&](const std::string& prompt) {
      return MakeRequest(prompt, temperature, k, 1, flags_.max_tokens);
    });
  }

  const Client& client_;
  const Flags& flags_;
  const std::vector<std::string> prompts_;
  std::vector<Mode> modes_;  // modes_[k] has the fixed K = k
};

absl::StatusOr<nlohmann::ordered_json> Measure(const Flags& flags) {
  auto prompts = LoadPrompts(flags.prompts);
  if (!prompts.ok()) return prompts.status();
  auto pair = RunningPair::Start(flags.services);
  if (!pair.ok()) return pair.status();
  auto report = BeginReport(pair->client);
  if (!report.ok()) return report.status();
  (*report)["set"] = flags.prompts.set;
  PairBench bench(pair->client, flags, *prompts);
  const DraftersFlags compared{{flags.repeats, flags.max_tokens}, flags.max_k, flags.trees};
  for (const double temperature : {0.0, 1.0}) {
    auto result = flags.drafters ? CompareDrafters(*pair, flags.services, compared, *prompts, temperature)
                                 : bench.Run(temperature);
    if (!result.ok()) return result.status();
    (*report)["results"].push_back(*std::move(result));
  }
  if (flags.drafters) {
    pair = absl::CancelledError();  // ends the pair before others start
    auto memory = MeasureMemory(flags.services, prompts->front());
    if (!memory.ok()) return memory.status();
    (*report)["memory"] = *std::move(memory);
  }
  return report;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Compares plain and speculative decoding of a pair on one stream.", "bench_pair");
  AddPairFlags(app, flags.services);
  AddPromptFlags(app, flags.prompts);
  AddNumber(app, "--max-tokens", flags.max_tokens, "tokens per generation", 64, 4096);
  AddNumber(app, "--max-k", flags.max_k, "largest K", 1, 16);
  AddNumber(app, "--repeats", flags.repeats, "runs of each prompt", 1, 100);
  app.add_flag("--drafters", flags.drafters, "compare all drafters, those of the target included");
  app.add_option("--shape", flags.trees, "trees as SHAPE@DEPTH, with --drafters")->capture_default_str();
  return RunBenchmark(app, argc, argv, [&] { return Measure(flags); });
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) { return outrider::Main(argc, argv); }
