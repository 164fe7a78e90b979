// Compares trees of drafted tokens with chains: tokens per target call and acceptance by depth and rank,
// which do not depend on the machine; the speed of one stream, in turns; and the speed that this pair's
// tokens per call would give in the shapes of Llama 3.2, with the measured times of their steps.
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/far_services.h"
#include "bench/llama_shapes.h"
#include "bench/pair_helpers.h"
#include "bench/run_benchmark.h"
#include "bench/step_times.h"
#include "bench/tree_acceptance.h"
#include "bench/tree_modes.h"
#include "bench/tree_speed.h"

namespace outrider {
namespace {

// Enough to complete every draft, however busy the machine is.
constexpr double kDraftBudgetSeconds = 60;

struct Flags {
  LocalServicesOptions services;
  PromptFlags prompts;
  std::vector<std::string> shapes = {
      "2x1@2",       "2x2@2",       "3x2@2",       "2x1x1@3",     "2x2x1@3",     "2x1x1x1@4",   "2x2x1x1@4",
      "3x2x1x1@4",   "chains:2@4",  "chains:3@4",  "chains:4@4",  "budget:4@2",  "budget:8@3",  "budget:8@4",
      "budget:12@4", "budget:12@5", "budget:16@2", "budget:16@3", "budget:16@4", "budget:16@5", "budget:16@6",
      "budget:64@2", "budget:64@3", "budget:64@4", "budget:64@5", "budget:64@6"};
  std::vector<double> temperatures = {0, 1};
  int max_k = 6;
  int passes = 3;
  TurnsFlags speed;
  double delay_ms = 0;
  bool llama = false;
  int scale = 1;
};

// A mode's yield per round with a fixed depth, to be combined with times of steps.
struct Yield {
  TreeMode mode;
  TreeAcceptance acceptance;
};

// Measures the rounds of each mode with a fixed depth.
class AcceptanceBench {
 public:
  AcceptanceBench(const Client& client, const Flags& flags, const std::vector<std::string>& prompts,
                  const std::vector<TreeMode>& modes)
      : client_(client), flags_(flags), prompts_(prompts), modes_(modes) {}

  absl::StatusOr<nlohmann::ordered_json> Run(double temperature) {
    absl::PrintF("\ntemperature %g\n%-13s %12s %9s %6s   %s\n", temperature, "", "tokens/call", "vs chain",
                 "nodes", "stands (1 - (1 - alpha)^m), by depth; by rank at depth 1");
    nlohmann::ordered_json rows;
    yields_.clear();
    std::vector<double> chains(1, 1.0);  // tokens per call, by K
    for (const TreeMode& mode : modes_) {
      if (!mode.k || *mode.k == 0) continue;
      TreeAcceptance acceptance(*mode.k);
      // At temperature 0 a second pass would repeat the first.
      for (int pass = 1; pass <= (temperature == 0 ? 1 : flags_.passes); ++pass) {
        for (const std::string& prompt : prompts_) {
          v1::GenerateRequest request =
              MakeRequest(mode, prompt, temperature, static_cast<uint64_t>(pass), flags_.speed.max_tokens);
          request.set_trace(true);
          auto answer = client_.Generate(request, [&](const v1::GenerateResponse& chunk) {
            if (chunk.has_trace()) acceptance.Add(chunk.trace());
          });
          if (!answer.ok()) return answer.status();
        }
      }
      if (mode.is_chain()) chains.push_back(acceptance.tokens_per_call());
      rows.push_back(Print(mode, acceptance, chains[static_cast<size_t>(*mode.k)]));
      yields_.push_back({mode, std::move(acceptance)});
      std::fflush(stdout);
    }
    return rows;
  }

  // The yields of the last Run.
  const std::vector<Yield>& yields() const { return yields_; }

 private:
  static nlohmann::ordered_json Print(const TreeMode& mode, const TreeAcceptance& acceptance, double chain) {
    const double ratio = acceptance.tokens_per_call() / chain;
    absl::PrintF("%-13s %6.2f +-%.2f %9.2f %6.1f  ", mode.name, acceptance.tokens_per_call(),
                 acceptance.StandardError(), ratio, acceptance.nodes_per_call());
    for (int d = 0; d < acceptance.depth(); ++d) {
      absl::PrintF(" %.3f (%.3f)", acceptance.Stands(d), acceptance.IndependentBound(d));
    }
    nlohmann::ordered_json row = {{"mode", mode.name}, {"k", *mode.k}, {"ratio_to_chain", ratio}};
    row.update(acceptance.Json());
    absl::PrintF(";");
    for (const auto& share : row["depths"][0]["accepted_by_rank"]) absl::PrintF(" %.3f", share.get<double>());
    absl::PrintF("\n");
    return row;
  }

  const Client& client_;
  const Flags& flags_;
  const std::vector<std::string>& prompts_;
  const std::vector<TreeMode>& modes_;
  std::vector<Yield> yields_;
};

// Times of steps in the shapes of Llama 3.2.
struct LlamaTimes {
  StepTimes target, draft;

  static absl::StatusOr<LlamaTimes> Measure(const Flags& flags) {
    const std::vector<int> rows = {1, 2, 3, 4, 5, 6, 7, 9, 11, 13, 15, 17, 22, 33, 65};
    std::vector<StepTimes> times;
    for (ModelShape shape : {kLlama3B, kLlama1B}) {
      shape.layers = std::max(1, shape.layers / flags.scale);
      auto measured = StepTimes::Measure(
          {.shape = shape, .dtype = flags.services.dtype, .threads = flags.services.threads, .rows = rows});
      if (!measured.ok()) return measured.status();
      times.push_back(*std::move(measured));
    }
    return LlamaTimes{std::move(times[0]), std::move(times[1])};
  }

  // A draft step for each depth, with the nodes of the previous depth, and a verification of all nodes.
  double Round(const TreeAcceptance& tree) const {
    double seconds = target.Seconds(1 + tree.nodes_per_call());
    for (int d = 0; d < tree.depth(); ++d) seconds += draft.Seconds(d == 0 ? 1 : tree.Width(d - 1));
    return seconds;
  }

  nlohmann::ordered_json Print() const {
    nlohmann::ordered_json report;
    absl::PrintF("\nmilliseconds of a step in the shapes of Llama 3.2, by rows\n%6s %8s %8s\n", "", "3B",
                 "1B");
    for (const auto& [rows, seconds] : target.by_rows()) {
      absl::PrintF("%6d %8.1f %8.1f\n", rows, 1e3 * seconds, 1e3 * draft.Seconds(rows));
      report.push_back({{"rows", rows}, {"target_seconds", seconds}, {"draft_seconds", draft.Seconds(rows)}});
    }
    return report;
  }
};

// The speeds that this pair's tokens per call give at those times. No pair of those shapes was run: its
// acceptance may differ.
nlohmann::ordered_json Combine(const LlamaTimes& times, const std::vector<Yield>& yields) {
  const double plain = 1 / times.target.Seconds(1);
  const auto rate = [&](const Yield& yield) {
    return yield.acceptance.tokens_per_call() / times.Round(yield.acceptance);
  };
  double best_chain = 0;
  for (const Yield& yield : yields) {
    if (yield.mode.is_chain()) best_chain = std::max(best_chain, rate(yield));
  }
  nlohmann::ordered_json rows;
  absl::PrintF("%-13s %10s %14s   tokens a call of this pair, times of Llama 3.2's shapes\n", "", "vs plain",
               "vs best chain");
  for (const Yield& yield : yields) {
    absl::PrintF("%-13s %10.2f %14.2f\n", yield.mode.name, rate(yield) / plain, rate(yield) / best_chain);
    rows.push_back({{"mode", yield.mode.name},
                    {"ratio_to_plain", rate(yield) / plain},
                    {"ratio_to_best_chain", rate(yield) / best_chain}});
  }
  return rows;
}

absl::Status Run(const Client& client, const Flags& flags, const std::vector<std::string>& prompts,
                 const std::vector<TreeMode>& modes, nlohmann::ordered_json& report) {
  std::optional<LlamaTimes> times;
  if (flags.llama) {
    auto measured = LlamaTimes::Measure(flags);
    if (!measured.ok()) return measured.status();
    report["llama_scale"] = flags.scale;
    report["llama_steps"] = measured->Print();
    times = *std::move(measured);
  }
  for (const double temperature : flags.temperatures) {
    if (flags.passes > 0) {
      AcceptanceBench bench(client, flags, prompts, modes);
      auto rows = bench.Run(temperature);
      if (!rows.ok()) return rows.status();
      report["acceptance"].push_back({{"temperature", temperature}, {"rows", *std::move(rows)}});
      if (times) {
        report["llama"].push_back({{"temperature", temperature}, {"rows", Combine(*times, bench.yields())}});
      }
    }
    if (flags.speed.turns > 0) {
      Turns bench(client, flags.speed, prompts, modes);
      if (absl::Status status = bench.Run(temperature); !status.ok()) return status;
      report["speed"].push_back(ReportTreeSpeed(bench, modes, temperature));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<nlohmann::ordered_json> Measure(Flags& flags) {
  auto prompts = LoadPrompts(flags.prompts);
  if (!prompts.ok()) return prompts.status();
  const auto modes = MakeTreeModes(flags.max_k, flags.shapes);
  if (!modes.ok()) return modes.status();
  flags.services.draft_budget_seconds = kDraftBudgetSeconds;
  auto pair = RunningPair::Start(flags.services);
  if (!pair.ok()) return pair.status();
  auto report = BeginReport(pair->client);
  if (!report.ok()) return report.status();
  (*report)["delay_ms"] = flags.delay_ms;
  std::unique_ptr<FarServices> far;
  if (flags.delay_ms > 0) {
    const std::string& model = flags.services.target_model;
    auto started = FarServices::Start(*pair->services, model.empty() ? "models/tiny-target" : model,
                                      std::chrono::duration<double, std::milli>(flags.delay_ms));
    if (!started.ok()) return started.status();
    far = *std::move(started);
  }
  const Client& client = far ? far->client() : pair->client;
  if (auto status = Run(client, flags, *prompts, *modes, *report); !status.ok()) {
    return status;
  }
  return report;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Compares trees of drafted tokens with chains.", "bench_tree");
  AddPairFlags(app, flags.services);
  AddPromptFlags(app, flags.prompts);
  app.add_option("--shape", flags.shapes, "trees as SHAPE@DEPTH")->capture_default_str();
  app.add_option("--temperature", flags.temperatures, "temperatures")->capture_default_str();
  AddNumber(app, "--max-tokens", flags.speed.max_tokens, "tokens per generation", 64, 4096);
  AddNumber(app, "--max-k", flags.max_k, "largest K of a chain", 1, 16);
  AddNumber(app, "--passes", flags.passes, "over the prompts, for tokens a call at temperatures above 0", 0,
            1000);
  AddNumber(app, "--turns", flags.speed.turns, "over the prompts, for speeds; 0: none are measured", 0, 1000);
  AddNumber(app, "--delay", flags.delay_ms, "milliseconds to draft and target, one way", 0.0, 1e3);
  app.add_flag("--llama", flags.llama, "also measure steps in the shapes of Llama 3.2: 6 GB of disk");
  AddNumber(app, "--scale", flags.scale, "divides the layers of these shapes, for a quick look", 1, 28);
  return RunBenchmark(app, argc, argv, [&] { return Measure(flags); });
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) { return outrider::Main(argc, argv); }
