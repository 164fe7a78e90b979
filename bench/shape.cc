// Measures a pair of real shape, Llama 3.2 3B and 1B, with generated weights: it costs what the real models
// cost, and its acceptance rate is a chosen number (bench/controlled_pair.h). Compares plain and speculative
// decoding through all three services at temperature 1 with the prediction of Theorem 3.8 for the measured c,
// separately for the tokens of a round and its time.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <tuple>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/controlled_pair.h"
#include "bench/llama_shapes.h"
#include "bench/one_process.h"
#include "bench/pair_helpers.h"
#include "bench/run_benchmark.h"
#include "bench/shape_load.h"
#include "bench/temporary_folder.h"
#include "common/spec/analysis.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

// The coordinator's default is for models that take milliseconds.
constexpr double kDraftBudgetSeconds = 60;
constexpr int kPromptTokens = 8;
constexpr int kPolicy = -1;  // in place of K: the coordinator chooses

struct Flags {
  LocalServicesOptions services;
  std::string tokenizer = "models/tiny-target";
  std::vector<double> alphas = {0.6, 0.8};
  int max_k = 4;
  int max_tokens = 64;
  int repeats = 1;
  int scale = 1;
  bool tiny = false;
  std::vector<int> streams;  // concurrent, each above 1
  double slice = 2;
  std::string pair;
  bool write_only = false;
  bool random = false;
  bool one_process = false;
};

// Sums over full rounds. Left out are the prompt's round, the first round with a draft, which includes the
// draft's prompt, and the last rounds, which have fewer tokens left to draft. Times are in microseconds.
struct Rounds {
  double count = 0, tokens = 0, draft = 0, verify = 0, total = 0;

  void Add(const v1::RoundTrace& trace, int k) {
    if (trace.round() < 2 || trace.drafted_size() < k) return;
    ++count;
    tokens += trace.accepted() + 1;
    draft += trace.draft_compute_us();
    verify += trace.verify_compute_us();
    total += trace.round_us();
  }
  double tokens_per_second() const { return 1e6 * tokens / total; }
  // A round's time outside the models: coordinator, wire and queues.
  double overhead() const { return (total - draft - verify) / count; }
};

class ShapeBench {
 public:
  ShapeBench(const Client& client, const Flags& flags) : client_(client), flags_(flags) {}

  absl::Status Measure() {
    for (int repeat = 1; repeat <= flags_.repeats; ++repeat) {
      for (size_t world = 0; world < flags_.alphas.size(); ++world) {
        for (int i = 0; i <= flags_.max_k + 1; ++i) {
          // The policy comes last, after it has observed the costs of each K.
          const int k = i <= flags_.max_k ? i : kPolicy;
          // Plain decoding is the same in every world.
          auto answer = client_.Generate(
              Request(static_cast<int>(world), k, repeat), [&](const v1::GenerateResponse& chunk) {
                rounds_[{k == 0 ? 0 : world, k}].Add(chunk.trace(), std::max(k, 0));
              });
          if (!answer.ok()) return answer.status();
        }
      }
    }
    return absl::OkStatus();
  }

  // Measures many concurrent streams.
  absl::Status MeasureLoads(nlohmann::ordered_json& report) {
    for (size_t world = 0; world < flags_.alphas.size(); ++world) {
      for (int streams : flags_.streams) {
        absl::PrintF("\nalpha = %.2f\n", flags_.alphas[world]);
        ShapeLoad load{.streams = streams, .seconds = flags_.slice};
        for (int k = 1; k <= flags_.max_k; k *= 2) load.ks.push_back(k);
        load.request = [&, world](std::optional<int> k, int index) {
          return Request(static_cast<int>(world), k.value_or(kPolicy), index + 1);
        };
        auto result = MeasureLoad(client_, load);
        if (!result.ok()) return result.status();
        (*result)["alpha"] = flags_.alphas[world];
        report["loads"].push_back(*std::move(result));
      }
    }
    return absl::OkStatus();
  }

  nlohmann::ordered_json Report() {
    const Rounds plain = rounds_[{0, 0}];
    const double plain_step = plain.verify / plain.count, plain_round = plain.total / plain.count;
    // Averaged over all K: a draft step costs the same in each.
    double draft = 0, drafted = 0;
    for (const auto& [key, rounds] : rounds_) {
      if (key.second == kPolicy) continue;
      draft += rounds.draft;
      drafted += rounds.count * key.second;
    }
    const double c = draft / drafted / plain_step;
    absl::PrintF("plain: %.2f tokens/s, %.1f ms a step; c = %.3f\n", plain.tokens_per_second(),
                 plain_step / 1e3, c);
    nlohmann::ordered_json report = {{"plain_tokens_per_second", plain.tokens_per_second()},
                                     {"plain_step_milliseconds", plain_step / 1e3},
                                     {"plain_overhead_microseconds", plain.overhead()},
                                     {"c", c}};
    for (size_t world = 0; world < flags_.alphas.size(); ++world) {
      const double alpha = flags_.alphas[world];
      absl::PrintF("\nalpha = %.2f\n%3s %9s %9s %12s %22s %22s %8s\n", alpha, "K", "tokens/s", "vs plain",
                   "Theorem 3.8", "tokens a round (theory)", "plain rounds (1 + K c)", "verify");
      nlohmann::ordered_json rows;
      for (int k = 1; k <= flags_.max_k; ++k) {
        const Rounds& rounds = rounds_[{world, k}];
        const double tokens = rounds.tokens / rounds.count;
        const double time = rounds.total / rounds.count / plain_round;
        const double verify = rounds.verify / rounds.count / plain_step;
        const double ratio = rounds.tokens_per_second() / plain.tokens_per_second();
        const double expected = ExpectedTokens(alpha, k), gain = WalltimeGain(alpha, k, c);
        absl::PrintF("%3d %9.2f %9.2f %12.2f %15.2f (%.2f)  %15.2f (%.2f)  %8.2f\n", k,
                     rounds.tokens_per_second(), ratio, gain, tokens, expected, time, 1 + k * c, verify);
        rows.push_back({{"k", k},
                        {"tokens_per_second", rounds.tokens_per_second()},
                        {"ratio_to_plain", ratio},
                        {"expected_ratio", gain},
                        {"tokens_per_round", tokens},
                        {"expected_tokens_per_round", expected},
                        {"round_in_plain_rounds", time},
                        {"expected_round_in_plain_rounds", 1 + k * c},
                        {"verification_in_plain_steps", verify},
                        {"overhead_microseconds", rounds.overhead()}});
      }
      const Rounds& policy = rounds_[{world, kPolicy}];
      const double ratio = policy.tokens_per_second() / plain.tokens_per_second();
      absl::PrintF("policy %6.2f %9.2f\n", policy.tokens_per_second(), ratio);
      report["alphas"].push_back({{"alpha", alpha},
                                  {"rows", std::move(rows)},
                                  {"policy",
                                   {{"tokens_per_second", policy.tokens_per_second()},
                                    {"tokens_per_round", policy.tokens / policy.count},
                                    {"ratio_to_plain", ratio}}}});
    }
    return report;
  }

 private:
  v1::GenerateRequest Request(int world, int k, int seed) const {
    v1::GenerateRequest request =
        MakeRequest("", 1, std::max(k, 0), static_cast<uint64_t>(seed), flags_.max_tokens);
    if (k == kPolicy) LeaveKToPolicy(request);
    for (TokenId token : ControlledPair::Prompt(world, kPromptTokens)) {
      request.mutable_tokens()->add_ids(static_cast<uint32_t>(token));
    }
    request.set_trace(true);
    return request;
  }

  const Client& client_;
  const Flags& flags_;
  std::map<std::pair<size_t, int>, Rounds> rounds_;  // by world and K
};

// A file that marks a complete pair in a folder, with the flags it was made with.
constexpr char kComplete[] = "complete";

std::string MadeFor(const Flags& flags) {
  const std::string weights =
      flags.random ? "--random" : absl::StrCat("--alpha ", absl::StrJoin(flags.alphas, " "));
  return absl::StrCat(weights, " --scale ", flags.scale, flags.tiny ? " --tiny" : "");
}

absl::StatusOr<bool> HasPair(const fs::path& folder, const Flags& flags) {
  std::ifstream file(folder / kComplete);
  std::string made_for;
  if (!std::getline(file, made_for)) return false;
  if (made_for == MadeFor(flags)) return true;
  return absl::FailedPreconditionError(absl::StrCat(folder.string(), " has a pair made with ", made_for));
}

absl::Status WritePair(const fs::path& folder, const Flags& flags) {
  const ControlledPair pair(flags.alphas);
  ModelShape target = flags.tiny ? kTiny3B : kLlama3B, draft = flags.tiny ? kTiny1B : kLlama1B;
  uint64_t bytes = 0;
  for (ModelShape* shape : {&target, &draft}) {
    shape->layers = std::max(1, shape->layers / flags.scale);
    bytes += ModelBytes(*shape);
  }
  std::error_code error;
  fs::create_directories(folder, error);
  if (const uint64_t free = fs::space(folder, error).available; error || free < bytes) {
    return absl::ResourceExhaustedError(absl::StrFormat("the weights take %d MB, %s has %d MB: set TMPDIR",
                                                        bytes >> 20, folder.string(), free >> 20));
  }
  absl::PrintF("writing %d MB of weights into %s\n", bytes >> 20, folder.string());
  std::fflush(stdout);
  for (const auto& [name, shape, role] :
       {std::tuple("shape-3B", target, PairRole::kTarget), std::tuple("shape-1B", draft, PairRole::kDraft)}) {
    fs::create_directory(folder / name, error);
    if (!error) {
      fs::copy_file(fs::path(flags.tokenizer) / "tokenizer.json", folder / name / "tokenizer.json",
                    fs::copy_options::overwrite_existing, error);
    }
    const FillRow fill = flags.random ? FillRow(RandomRows()) : pair.Weights(role);
    if (error || !WriteModel(folder / name, shape, fill)) {
      return absl::UnavailableError(absl::StrCat("cannot write ", (folder / name).string()));
    }
  }
  std::ofstream(folder / kComplete) << MadeFor(flags) << "\n";
  return absl::OkStatus();
}

absl::StatusOr<nlohmann::ordered_json> MeasureWith(const Client& client, const Flags& flags) {
  auto report = BeginReport(client);
  if (!report.ok()) return report.status();
  (*report)["scale"] = flags.scale;
  (*report)["one_process"] = flags.one_process;
  ShapeBench bench(client, flags);
  if (auto status = bench.Measure(); !status.ok()) return status;
  report->update(bench.Report());
  if (auto status = bench.MeasureLoads(*report); !status.ok()) return status;
  return report;
}

absl::StatusOr<nlohmann::ordered_json> Measure(Flags& flags) {
  for (double& alpha : flags.alphas) alpha = std::round(100 * alpha) / 100;
  const TemporaryFolder temporary;
  if (!temporary.made()) return absl::UnavailableError("cannot make a temporary folder");
  const fs::path folder = flags.pair.empty() ? temporary.path() : flags.pair;
  flags.services.target_model = folder / "shape-3B";
  flags.services.draft_model = folder / "shape-1B";
  const auto has_pair = HasPair(folder, flags);
  if (!has_pair.ok()) return has_pair.status();
  if (!*has_pair) {
    if (auto status = WritePair(folder, flags); !status.ok()) return status;
  }
  if (flags.write_only) return nlohmann::ordered_json();
  flags.services.draft_budget_seconds = kDraftBudgetSeconds;
  if (flags.one_process) {
    const auto pair = OneProcess::Start(flags.services);
    if (!pair.ok()) return pair.status();
    return MeasureWith((*pair)->client(), flags);
  }
  auto pair = RunningPair::Start(flags.services);
  if (!pair.ok()) return pair.status();
  // The services have the files mapped, so an interrupted run leaves nothing large behind.
  if (flags.pair.empty()) fs::remove_all(folder);
  return MeasureWith(pair->client, flags);
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Measures a pair of Llama 3.2's shape with a chosen acceptance rate.", "bench_shape");
  AddNumber(app, "--alpha", flags.alphas, "acceptance rates, to the nearest hundredth", 0.0, 0.99)
      ->expected(1, 16);
  AddNumber(app, "--max-k", flags.max_k, "largest K", 1, 8);
  AddNumber(app, "--max-tokens", flags.max_tokens, "tokens per generation", 32, 2000);
  AddNumber(app, "--repeats", flags.repeats, "generations per figure", 1, 1000);
  AddNumber(app, "--scale", flags.scale, "divides the number of layers, for a quick look", 1, 28);
  app.add_option("--streams", flags.streams, "also measure this many concurrent streams")
      ->check(CLI::Range(2, 1024))
      ->expected(1, 8);
  AddNumber(app, "--slice", flags.slice, "seconds per figure of many streams", 0.1, 1e3);
  app.add_flag("--tiny", flags.tiny, "far smaller shapes, to try the program itself");
  app.add_option("--pair", flags.pair, "folder for the weights: reused if it has them, else written");
  CLI::Option* const write_only =
      app.add_flag("--write-only", flags.write_only, "only write the weights into --pair");
  app.add_flag("--random", flags.random, "random weights, none of them zero: no acceptance rate is chosen")
      ->needs(write_only);
  app.add_flag("--one-process", flags.one_process, "serve both models by outrider-pair");
  AddComputeFlags(app, flags.services);
  app.add_option("--tokenizer", flags.tokenizer, "folder with a tokenizer.json; any will do")
      ->check(CLI::ExistingDirectory)
      ->capture_default_str();
  return RunBenchmark(app, argc, argv, [&] { return Measure(flags); });
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) { return outrider::Main(argc, argv); }
