// How often each drafter is right, and what the size of q on the wire costs in acceptance. Times are
// bench_pair's business: nothing here depends on the machine's speed.
#include <iostream>
#include <map>

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
  int k = 4;
  int repeats = 4;
};

struct Way {
  std::string name;
  v1::DrafterKind drafter = v1::DRAFTER_KIND_MODEL;
  double temperature = 1;
  uint32_t top_n = 0;
};

// Sums over rounds, the first tokens after a prompt left out where nothing is drafted.
struct Tally {
  double drafted = 0, accepted = 0, judged = 0, overlap = 0, rounds = 0, tokens = 0, bytes = 0;
};

absl::StatusOr<Tally> Measure(const Client& client, const Flags& flags, const Way& way) {
  Tally tally;
  for (int repeat = 1; repeat <= flags.repeats; ++repeat) {
    for (const std::string& prompt : LoadPrompts(flags.prompts)) {
      v1::GenerateRequest request = MakeRequest(prompt, way.temperature, flags.k, repeat, flags.max_tokens);
      request.set_trace(true);
      request.mutable_speculation()->set_drafter(way.drafter);
      request.mutable_speculation()->set_draft_top_n(way.top_n);
      auto answer = client.Generate(
          request, [&](const v1::GenerateResponse& chunk) { tally.bytes += chunk.trace().draft_bytes(); });
      if (!answer.ok()) return answer.status();
      const v1::SpeculationStats& stats = answer->finish.speculation();
      tally.drafted += static_cast<double>(stats.drafted());
      tally.accepted += static_cast<double>(stats.accepted());
      tally.rounds += static_cast<double>(stats.rounds() - 1);
      tally.tokens += answer->finish.usage().completion_tokens() - 1.0;
      // Each draft is judged up to its first rejected token.
      double judged = 0;
      for (int i = 0; i < stats.drafted_per_position_size(); ++i) {
        const double reached = i == 0 ? static_cast<double>(stats.drafted_per_position(0))
                                      : static_cast<double>(stats.accepted_per_position(i - 1));
        judged += std::min(reached, static_cast<double>(stats.drafted_per_position(i)));
      }
      tally.judged += judged;
      tally.overlap += stats.expected_acceptance() * judged;
    }
  }
  return tally;
}

absl::StatusOr<nlohmann::ordered_json> Table(const Client& client, const Flags& flags,
                                             const std::string& title, const std::vector<Way>& ways) {
  absl::PrintF("\n%s\n%-22s %7s %10s %12s %12s\n", title, "", "alpha", "accepted", "tokens/call",
               "bytes/token");
  nlohmann::ordered_json rows;
  for (const Way& way : ways) {
    const absl::StatusOr<Tally> tally = Measure(client, flags, way);
    if (!tally.ok()) return tally.status();
    const double alpha = tally->judged > 0 ? tally->overlap / tally->judged : 0;
    const double rate = tally->drafted > 0 ? tally->accepted / tally->drafted : 0;
    const double per_call = tally->tokens / tally->rounds;
    const double bytes = tally->drafted > 0 ? tally->bytes / tally->drafted : 0;
    absl::PrintF("%-22s %7.3f %10.3f %12.2f %12.1f\n", way.name, alpha, rate, per_call, bytes);
    rows.push_back({{"name", way.name},
                    {"alpha", alpha},
                    {"acceptance_rate", rate},
                    {"tokens_per_call", per_call},
                    {"bytes_per_drafted_token", bytes}});
  }
  return rows;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Measures how often each drafter is right.", "bench_acceptance");
  AddPairFlags(app, flags.services, flags.prompts);
  app.add_option("--drafter-corpus", flags.services.drafter_corpus, "text for unigram and bigram drafters")
      ->required();
  app.add_option("--draft-dtype", flags.services.draft_dtype, "of the draft, if it is to have another one");
  app.add_option("--max-tokens", flags.max_tokens, "a generation")
      ->check(CLI::Range(16, 4096))
      ->capture_default_str();
  app.add_option("--draft-tokens", flags.k, "K")->check(CLI::Range(1, 16))->capture_default_str();
  app.add_option("--repeats", flags.repeats, "times each prompt is run")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option("--json", flags.json, "file for the results");
  UseOneLineErrors(app);
  CLI11_PARSE(app, argc, argv);

  auto pair = RunningPair::Start(flags.services);
  if (!pair.ok()) return Fail("bench_acceptance", pair.status());
  const std::vector<std::pair<std::string, v1::DrafterKind>> drafters = {
      {"model", v1::DRAFTER_KIND_MODEL},   {"auto", v1::DRAFTER_KIND_AUTO},
      {"ngram", v1::DRAFTER_KIND_NGRAM},   {"copy", v1::DRAFTER_KIND_COPY},
      {"bigram", v1::DRAFTER_KIND_BIGRAM}, {"unigram", v1::DRAFTER_KIND_UNIGRAM},
      {"random", v1::DRAFTER_KIND_RANDOM}};
  nlohmann::ordered_json report;
  for (const double temperature : {1.0, 0.0}) {
    std::vector<Way> ways;
    for (const auto& [name, kind] : drafters) ways.push_back({name, kind, temperature});
    auto rows =
        Table(pair->client, flags, absl::StrFormat("K = %d, temperature %g", flags.k, temperature), ways);
    if (!rows.ok()) return Fail("bench_acceptance", rows.status());
    report["drafters"].push_back({{"temperature", temperature}, {"rows", *rows}});
  }
  std::vector<Way> ways;
  for (const uint32_t n : {1, 4, 16, 32, 64, 128, 256, 1024, 1 << 20}) {
    ways.push_back({n == 1 << 20 ? "all (dense)" : absl::StrFormat("%d", n), v1::DRAFTER_KIND_MODEL, 1, n});
  }
  auto rows = Table(pair->client, flags, "tokens kept of q, model, temperature 1", ways);
  if (!rows.ok()) return Fail("bench_acceptance", rows.status());
  report["top_n"] = *rows;
  if (!flags.json.empty()) std::ofstream(flags.json) << report.dump(1) << "\n";
  return 0;
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) { return outrider::Main(argc, argv); }
