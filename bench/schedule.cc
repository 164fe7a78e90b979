// Measures the gain of a schedule: the real coordinator between the real services of a draft and a target
// that take a given time by the clock (timed_pair.h), so that one machine can measure the speeds of two.
// Bytes between coordinator and services pass through a relay that adds the delay of --delay, since Toxiproxy
// delays by whole milliseconds. The cost of the relay itself is measured first, with plain decoding.
//
// Beside each speed are three predictions of common/spec/analysis.h for the measured acceptance: Theorem 3.8,
// which ignores the delay; the speed that the schedule should give with the measured hits; and perfect
// overlap, the upper bound. All are relative to plain decoding without delay.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/delay_relay.h"
#include "bench/generated_model.h"
#include "bench/pair_helpers.h"
#include "bench/run_benchmark.h"
#include "bench/spread.h"
#include "bench/tally.h"
#include "bench/temporary_folder.h"
#include "bench/timed_server.h"
#include "common/rpc/drafters.h"
#include "common/rpc/queue_poller.h"
#include "common/spec/analysis.h"
#include "draft_service/draft_service.h"
#include "target_service/target_service.h"

namespace outrider {
namespace {

// Tokens of a prompt, and of how much longer each repeat's is: choices depend on the position, so that each
// repeat has another text.
constexpr int kPrompt = 16, kLonger = 512;

struct Flags {
  std::string tokenizer = "models/tiny-target";
  double step_ms = 10;
  double c = 0.385;
  double row_ms = 0;
  TimedLaw law{.alpha = 0.8, .hits = {0.7}};
  std::vector<double> delays_ms = {0, 0.1, 1, 5, 20};
  std::vector<int> ks = {1, 2, 3, 4};
  std::vector<std::string> schedules = {"lockstep", "run_ahead"};
  std::vector<std::string> drafters = {"model"};
  std::optional<int> branches;
  int tokens = 400;
  int repeats = 2;
  bool policy = false;
  bool goals = false;
};

// One way of generating.
struct Mode {
  std::string drafter, schedule;
  int k = 0;
  bool policy = false;  // the coordinator chooses K
};
const Mode kPlain = {"none", "lockstep"};
const Mode kPolicy = {"model", "auto", 0, true};

struct Result {
  SpeculationTally tally;
  double seconds = 0;
  double ahead_rounds = 0, ahead_hits = 0;
  double traced = 0, waited_us = 0;  // rounds, and their time waiting for proposals
  std::vector<double> to_plain, to_undelayed;

  double Rate() const { return tally.tokens / seconds; }
  double HitRate() const { return ahead_rounds > 0 ? ahead_hits / ahead_rounds : 0; }
};

class ScheduleBench {
 public:
  // `set_delay` takes milliseconds in one direction.
  ScheduleBench(const Client& client, const Flags& flags, std::function<void(double)> set_delay)
      : client_(client), flags_(flags), set_delay_(std::move(set_delay)) {}

  // The rate of plain decoding through `client`, for the ratios, in tokens per second.
  absl::StatusOr<double> MeasurePlain(const Client& client) const {
    Result result;
    for (int repeat = 0; repeat < flags_.repeats; ++repeat) {
      if (absl::Status status = Generate(client, kPlain, repeat, result); !status.ok()) return status;
    }
    return result.Rate();
  }

  // Runs all modes at one delay, in turn. `undelayed` is the rate of plain decoding without delay.
  absl::StatusOr<nlohmann::ordered_json> Run(double delay_ms, double undelayed) const {
    set_delay_(delay_ms);
    const std::vector<Mode> modes = Modes();
    std::vector<Result> results(modes.size());
    if (flags_.policy) {  // learns the delay
      Result unused;
      if (absl::Status status = Generate(client_, kPolicy, flags_.repeats, unused); !status.ok())
        return status;
    }
    for (int repeat = 0; repeat < flags_.repeats; ++repeat) {
      std::vector<double> rates(modes.size());
      for (size_t i = 0; i < modes.size(); ++i) {
        // Alternately forwards and backwards, so that a drift cancels out.
        const size_t mode = repeat % 2 == 0 ? i : modes.size() - 1 - i;
        Result& result = results[mode];
        const double tokens = result.tally.tokens, seconds = result.seconds;
        if (absl::Status status = Generate(client_, modes[mode], repeat, result); !status.ok()) return status;
        rates[mode] = (result.tally.tokens - tokens) / (result.seconds - seconds);
      }
      for (size_t i = 0; i < modes.size(); ++i) {
        results[i].to_plain.push_back(rates[i] / rates[0]);
        results[i].to_undelayed.push_back(rates[i] / undelayed);
      }
    }
    nlohmann::ordered_json rows;
    for (size_t i = 0; i < modes.size(); ++i) rows.push_back(Row(delay_ms, modes[i], results[i]));
    if (flags_.policy) {
      const auto best = FastestOf(rows);
      absl::PrintF("policy: %.3f of the fastest, %s with K = %d\n\n",
                   rows.back()["ratio_to_plain"].get<double>() / best["ratio_to_plain"].get<double>(),
                   best["schedule"].get<std::string>(), best["k"].get<int>());
    }
    return rows;
  }

  static void PrintHead() {
    absl::PrintF("%6s %-6s %-9s %2s %9s %9s %11s %8s %9s %8s %6s %9s %8s %11s\n", "delay", "", "", "K",
                 "tokens/s", "vs plain", "vs no delay", "Thm 3.8", "expected", "overlap", "alpha",
                 "tok/round", "hit rate", "draft waits");
  }

 private:
  // All modes, plain decoding first.
  std::vector<Mode> Modes() const {
    std::vector<Mode> modes = {kPlain};
    for (const std::string& drafter : flags_.drafters) {
      for (const std::string& schedule : flags_.schedules) {
        for (int k : flags_.ks) modes.push_back({drafter, schedule, k});
      }
    }
    if (flags_.policy) modes.push_back(kPolicy);
    return modes;
  }
  // The row of the fastest mode but the policy, which is the last.
  static nlohmann::ordered_json FastestOf(const nlohmann::ordered_json& rows) {
    return *std::max_element(rows.begin(), rows.end() - 1, [](const auto& a, const auto& b) {
      return a["ratio_to_plain"] < b["ratio_to_plain"];
    });
  }

  absl::Status Generate(const Client& client, const Mode& mode, int repeat, Result& result) const {
    v1::GenerateRequest request;
    for (int i = 0; i < kPrompt + repeat * kLonger; ++i) request.mutable_tokens()->add_ids(300);
    request.mutable_sampling()->set_temperature(0);
    request.set_trace(true);
    request.mutable_speculation()->set_drafter(FromName<v1::DrafterKind>(mode.drafter));
    request.mutable_speculation()->set_schedule(FromName<v1::Schedule>(mode.schedule));
    if (!mode.policy) request.mutable_speculation()->set_draft_tokens(static_cast<uint32_t>(mode.k));
    request.mutable_stop()->set_max_tokens(static_cast<uint32_t>(flags_.tokens));
    request.mutable_stop()->set_ignore_eos(true);
    const auto answer = client.Generate(request, [&](const v1::GenerateResponse& chunk) {
      // Round 0 is the prompt's, and round 1 includes the draft's prompt.
      if (chunk.trace().round() < 2) return;
      ++result.traced;
      result.waited_us += chunk.trace().draft_us();
    });
    if (!answer.ok()) return answer.status();
    result.tally.Add(answer->finish);
    result.seconds += answer->finish.usage().decode_seconds();
    result.ahead_rounds += static_cast<double>(answer->finish.speculation().ahead_rounds());
    result.ahead_hits += static_cast<double>(answer->finish.speculation().ahead_hits());
    return absl::OkStatus();
  }

  nlohmann::ordered_json Row(double delay_ms, const Mode& mode, const Result& result) const {
    const double delay = delay_ms / flags_.step_ms, alpha = std::min(result.tally.alpha(), 0.999);
    const double wait_ms = result.waited_us / 1000 / std::max(result.traced, 1.0);
    nlohmann::ordered_json row = {{"delay_ms", delay_ms},
                                  {"drafter", mode.drafter},
                                  {"schedule", mode.schedule},
                                  {"k", mode.k},
                                  {"policy", mode.policy},
                                  {"tokens_per_second", result.Rate()},
                                  {"ratio_to_plain", Median(result.to_plain)},
                                  {"ratio_to_undelayed_plain", Median(result.to_undelayed)},
                                  {"alpha", alpha},
                                  {"tokens_per_round", result.tally.tokens_per_call()},
                                  {"hit_rate", result.HitRate()},
                                  {"draft_wait_ms", wait_ms}};
    absl::PrintF("%6g %-6s %-9s %2d %9.1f %9.3f %11.3f", delay_ms, mode.drafter, mode.schedule, mode.k,
                 result.Rate(), Median(result.to_plain), Median(result.to_undelayed));
    if (mode.drafter == "model" && !mode.policy) {
      row["theorem_3_8"] = WalltimeGain(alpha, mode.k, flags_.c);
      row["expected"] = RunAheadGain(alpha, mode.k, flags_.c, result.HitRate(), delay);
      row["perfect_overlap"] = OverlapGain(alpha, mode.k, flags_.c, 2 * delay);
      absl::PrintF(" %8.3f %9.3f %8.3f", row["theorem_3_8"].get<double>(), row["expected"].get<double>(),
                   row["perfect_overlap"].get<double>());
    } else {
      absl::PrintF(" %8s %9s %8s", "", "", "");
    }
    absl::PrintF(" %6.3f %9.2f %8.3f %11.2f\n", alpha, result.tally.tokens_per_call(), result.HitRate(),
                 wait_ms);
    std::fflush(stdout);
    return row;
  }

  const Client& client_;
  const Flags& flags_;
  const std::function<void(double)> set_delay_;
};

// The row of a schedule's fastest K.
nlohmann::ordered_json Fastest(const nlohmann::ordered_json& rows, const std::string& schedule) {
  nlohmann::ordered_json best;
  for (const auto& row : rows) {
    if (row["drafter"] == "none" || row["policy"] || row["schedule"] != schedule) continue;
    if (best.is_null() || row["ratio_to_plain"] > best["ratio_to_plain"]) best = row;
  }
  return best;
}

// A goal that --goals checks: the best of each schedule, with this delay and these hits.
struct Goal {
  double delay_ms;
  TimedLaw law;
};
const Goal kGoals[] = {{0, {.8, {.7}}}, {1, {.8, {.8}}}, {0, {.8, {0}}}};

absl::StatusOr<nlohmann::ordered_json> RunGoals(const ScheduleBench& bench, double undelayed,
                                                std::atomic<const TimedLaw*>& law) {
  nlohmann::ordered_json goals;
  for (const Goal& goal : kGoals) {
    law = &goal.law;
    auto rows = bench.Run(goal.delay_ms, undelayed);
    if (!rows.ok()) return rows.status();
    const auto lockstep = Fastest(*rows, "lockstep"), ahead = Fastest(*rows, "run_ahead");
    const double ratio = ahead["ratio_to_plain"].get<double>() / lockstep["ratio_to_plain"].get<double>();
    absl::PrintF("hits %g, delay %g ms: run_ahead %.3f at K = %d, lockstep %.3f at K = %d: %.3f of it\n\n",
                 goal.law.hits[0], goal.delay_ms, ahead["ratio_to_plain"].get<double>(),
                 ahead["k"].get<int>(), lockstep["ratio_to_plain"].get<double>(), lockstep["k"].get<int>(),
                 ratio);
    goals.push_back({{"hits", goal.law.hits},
                     {"delay_ms", goal.delay_ms},
                     {"lockstep", lockstep},
                     {"run_ahead", ahead},
                     {"run_ahead_to_lockstep", ratio},
                     {"rows", *rows}});
  }
  return goals;
}

absl::StatusOr<std::unique_ptr<ChildProcess>> StartCoordinator(const Flags& flags, const std::string& log,
                                                               const std::string& listen,
                                                               const std::string& draft,
                                                               const std::string& target) {
  const std::string programs = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  std::vector<std::string> command = {programs + "/outrider-coordinator",
                                      "--listen=" + listen,
                                      "--metrics-listen",
                                      "",
                                      "--http-listen",
                                      "",
                                      "--target=" + target,
                                      "--draft=" + draft,
                                      "--tokenizer=" + flags.tokenizer,
                                      "--draft-budget=60"};
  if (flags.branches) command.push_back(absl::StrCat("--run-ahead-branches=", *flags.branches));
  return ChildProcess::Spawn(command, log);
}

absl::StatusOr<nlohmann::ordered_json> Measure(const Flags& flags) {
  GiveQueuesTheirConnections();  // as the services do
  const TemporaryFolder folder;
  const ModelShape shape{
      .hidden = 8, .intermediate = 8, .layers = 1, .heads = 1, .kv_heads = 1, .head_dim = 8};
  if (!folder.made() || !WriteModel(folder.path(), shape, RandomRows())) {
    return absl::UnavailableError("cannot write a model to the temporary folder");
  }
  const auto path = [&](const char* name) { return absl::StrCat(folder.path(), "/", name); };
  const auto address = [&](const char* name) { return "unix:" + path(name); };
  // Spawned before gRPC starts threads in this process. The first coordinator shows the relay's cost.
  auto direct = StartCoordinator(flags, path("log"), address("direct"), address("draft"), address("target"));
  if (!direct.ok()) return direct.status();
  auto relayed =
      StartCoordinator(flags, path("log"), address("relayed"), address("far-draft"), address("far-target"));
  if (!relayed.ok()) return relayed.status();

  const auto info = TimedServerInfo(flags.tokenizer, shape);
  if (!info.ok()) return info.status();
  std::atomic<const TimedLaw*> law = &flags.law;
  const std::chrono::duration<double, std::milli> step(flags.step_ms), row(flags.row_ms);
  const auto draft = TimedServer::Start(
      DraftSpec(), {.is_draft = true, .law = &law, .step = flags.c * step, .more_per_row = row},
      folder.path(), *info, address("draft"));
  if (!draft.ok()) return draft.status();
  const auto target =
      TimedServer::Start(TargetSpec(), {.law = &law, .step = step}, folder.path(), *info, address("target"));
  if (!target.ok()) return target.status();

  asio::io_context io;
  DelayRelay to_draft(io, path("far-draft"), path("draft")),
      to_target(io, path("far-target"), path("target"));
  const std::jthread relays([&] { io.run(); });
  const absl::Cleanup stop = [&] { io.stop(); };

  const auto direct_client = ConnectWhenServing(**direct, address("direct"));
  if (!direct_client.ok()) return direct_client.status();
  const auto client = ConnectWhenServing(**relayed, address("relayed"));
  if (!client.ok()) return client.status();
  const ScheduleBench bench(*client, flags, [&](double delay_ms) {
    const std::chrono::duration<double, std::milli> delay(delay_ms);
    to_draft.SetDelay(delay);
    to_target.SetDelay(delay);
  });

  const auto without = bench.MeasurePlain(*direct_client), undelayed = bench.MeasurePlain(*client);
  if (!without.ok()) return without.status();
  if (!undelayed.ok()) return undelayed.status();
  const double relay_ms = 1000 / *undelayed - 1000 / *without;
  absl::PrintF(
      "target step %g ms, draft step %g ms; plain decoding takes %.3f ms a token, %.3f ms of it the "
      "relay\n\n",
      flags.step_ms, flags.c * flags.step_ms, 1000 / *undelayed, relay_ms);
  ScheduleBench::PrintHead();
  nlohmann::ordered_json report = {
      {"machine", MachineName()}, {"step_ms", flags.step_ms}, {"c", flags.c},
      {"alpha", flags.law.alpha}, {"hits", flags.law.hits},   {"plain_tokens_per_second", *undelayed},
      {"relay_ms", relay_ms}};
  if (flags.goals) {
    auto goals = RunGoals(bench, *undelayed, law);
    if (!goals.ok()) return goals.status();
    report["goals"] = *goals;
  } else {
    for (double delay_ms : flags.delays_ms) {
      const auto rows = bench.Run(delay_ms, *undelayed);
      if (!rows.ok()) return rows.status();
      for (const auto& one : *rows) report["rows"].push_back(one);
    }
  }
  return report;
}

void DefineFlags(CLI::App& app, Flags& flags) {
  app.add_option("--tokenizer", flags.tokenizer, "folder with a tokenizer.json of 4096 tokens")
      ->check(CLI::ExistingDirectory)
      ->capture_default_str();
  AddNumber(app, "--step", flags.step_ms, "milliseconds of a target step", 0.1, 1e4);
  AddNumber(app, "-c,--cost", flags.c, "time of a draft step in units of a target step", 0.0, 100.0);
  AddNumber(app, "--row-cost", flags.row_ms,
            "milliseconds that each row of a draft step beyond the first costs", 0.0, 1e3);
  AddNumber(app, "--alpha", flags.law.alpha, "how often a drafted token is accepted", 0.0, 1.0);
  AddNumber(app, "--hits", flags.law.hits,
            "how often the draft's next choice follows, by the number of accepted tokens; the last one "
            "counts for more",
            0.0, 1.0);
  AddNumber(app, "--delay", flags.delays_ms, "milliseconds to the services, one way", 0.0, 1e3);
  AddNumber(app, "--draft-tokens", flags.ks, "K", 1, kMaxDraftTokens);
  app.add_option("--schedule", flags.schedules, "lockstep, run_ahead or auto")
      ->check(CLI::IsMember({"lockstep", "run_ahead", "auto"}))
      ->capture_default_str();
  app.add_option("--drafter", flags.drafters, "model, ngram or none; plain decoding is measured anyway")
      ->check(CLI::IsMember({"model", "ngram", "none"}))
      ->capture_default_str();
  app.add_option("--branches", flags.branches, "the coordinator's --run-ahead-branches");
  app.add_flag("--policy", flags.policy, "also leaves K and schedule to the coordinator");
  AddNumber(app, "--tokens", flags.tokens, "tokens per generation", 16, 4096);
  AddNumber(app, "--repeats", flags.repeats, "generations of each mode", 1, 100);
  app.add_flag("--goals", flags.goals,
               "measures the best K of both schedules with alpha 0.8: hits 0.7; hits 0.8 and 1 ms; no hits");
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Measures what drafting during verification gains, at any delay.", "bench_schedule");
  DefineFlags(app, flags);
  return RunBenchmark(app, argc, argv, [&] { return Measure(flags); });
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) { return outrider::Main(argc, argv); }
