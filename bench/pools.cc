// Simulates pools of many servers under the coordinator's placement (coordinator/servers/placement.h): how
// evenly sequences are spread when each coordinator knows its own and what servers report, how many move when
// servers fail or are replaced, and how many find their prompt's prefix. Other ways to choose a server, with
// the same requests and outages, are for comparison.
#include "absl/strings/str_format.h"
#include "bench/pools_simulation.h"
#include "bench/run_benchmark.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

struct Named {
  Choice choice;
  const char* name;
};
// The last one is what the others are compared with.
constexpr Named kChoices[] = {{Choice::kPlacement, "placement"},
                              {Choice::kRandom, "random"},
                              {Choice::kRoundRobin, "round robin"},
                              {Choice::kAllKnowing, "all-knowing"}};
constexpr const char* kRoles[] = {"target", "draft"};

double MeanOf(const std::vector<Balance>& balance, double from, double Balance::*what) {
  double sum = 0;
  int count = 0;
  for (const Balance& sample : balance) {
    if (sample.at < from) continue;
    sum += sample.*what;
    ++count;
  }
  return count > 0 ? sum / count : 0;
}

Json ToJson(const PoolsWorkload& workload, const PoolsResult& result) {
  const double from = kWarmUp * workload.seconds;
  Json json;
  for (int role : {kTarget, kDraft}) {
    const std::vector<Balance>& balance = result.balance[role];
    Json series = Json::array();
    for (const Balance& sample : balance)
      series.push_back({sample.at, sample.max_to_mean, sample.p99_to_mean});
    json[kRoles[role]] = {{"sequences", MeanOf(balance, from, &Balance::mean)},
                          {"max_to_mean", MeanOf(balance, from, &Balance::max_to_mean)},
                          {"p99_to_mean", MeanOf(balance, from, &Balance::p99_to_mean)},
                          {"prefix_hits", static_cast<double>(result.hits[role]) /
                                              std::max<double>(1, static_cast<double>(result.placed[role]))},
                          {"balance", std::move(series)}};
  }
  json["requests"] = result.requests;
  json["moved_lost"] = result.lost;
  json["moved_drained"] = result.drained;
  json["waited"] = result.waited;
  json["tokens_per_second"] = result.tokens / (workload.seconds - from);
  json["stream_tokens_per_second"] = result.stream_rate;
  return json;
}

void PrintTable(const Json& rows) {
  absl::PrintF("%12s | %17s | %17s | %11s | %13s | %6s | %8s | %17s\n", "", "targets: max, p99",
               "drafts: max, p99", "prefix hits", "moved: lost,", "waited", "tokens/s", "a stream's");
  absl::PrintF("%12s | %17s | %17s | %11s | %13s | %6s | %8s | %17s\n", "", "to mean", "to mean",
               "of targets", "drained", "", "", "tokens/s, share");
  const double best = rows.back()["stream_tokens_per_second"];
  for (const Json& row : rows) {
    const Json& target = row["target"];
    const Json& draft = row["draft"];
    const double stream = row["stream_tokens_per_second"];
    absl::PrintF("%12s | %8.2f %8.2f | %8.2f %8.2f | %9.0f %% | %6d %6d | %6d | %8.0f | %8.1f %6.0f %%\n",
                 row["placement"].get<std::string>(), target["max_to_mean"].get<double>(),
                 target["p99_to_mean"].get<double>(), draft["max_to_mean"].get<double>(),
                 draft["p99_to_mean"].get<double>(), 100 * target["prefix_hits"].get<double>(),
                 row["moved_lost"].get<int>(), row["moved_drained"].get<int>(), row["waited"].get<int>(),
                 row["tokens_per_second"].get<double>(), stream, 100 * stream / best);
  }
}

absl::StatusOr<Json> Measure(const PoolsWorkload& workload) {
  const std::vector<SimulatedRequest> requests = DrawRequests(workload);
  const std::vector<Outage> outages = DrawOutages(workload);
  Json rows = Json::array();
  for (const Named& named : kChoices) {
    Json row = {{"placement", named.name}};
    row.update(ToJson(workload, PoolsSimulation(workload, requests, outages, named.choice).Run()));
    rows.push_back(std::move(row));
  }
  const Json& target = rows[0]["target"];
  const Json& draft = rows[0]["draft"];
  absl::PrintF("%d coordinators, %d targets with %.1f sequences each, %d drafts with %.1f, %g s, seed %d\n\n",
               workload.coordinators, workload.targets, target["sequences"].get<double>(), workload.drafts,
               draft["sequences"].get<double>(), workload.seconds, workload.seed);
  PrintTable(rows);
  Json report = {
      {"targets", workload.targets},   {"drafts", workload.drafts}, {"coordinators", workload.coordinators},
      {"seconds", workload.seconds},   {"rate", workload.rate},     {"delay", workload.delay},
      {"failures", workload.failures}, {"seed", workload.seed},     {"rows", rows}};
  return report;
}

int Main(int argc, char** argv) {
  PoolsWorkload workload;
  CLI::App app("Simulates pools of servers, and how the coordinator's placement fills them.", "bench_pools");
  AddNumber(app, "--targets", workload.targets, "targets", 1, 100000);
  AddNumber(app, "--drafts", workload.drafts, "drafts", 1, 100000);
  AddNumber(app, "--coordinators", workload.coordinators, "coordinators", 1, 100000);
  AddNumber(app, "--seconds", workload.seconds,
            "seconds that are simulated, of which the first quarter is left out", 1.0, 1e6);
  AddNumber(app, "--rate", workload.rate, "requests a second", 0.1, 1e6);
  AddNumber(app, "--delay", workload.delay, "seconds from an answer to the sequence's next item", 0.0, 1e6);
  AddNumber(app, "--failures", workload.failures, "servers a second that die; as many are told to end", 0.0,
            1e6);
  app.add_option("--seed", workload.seed, "the result is a function of it")->capture_default_str();
  return RunBenchmark(app, argc, argv, [&] { return Measure(workload); });
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) { return outrider::Main(argc, argv); }
