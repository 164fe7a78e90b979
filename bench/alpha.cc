// Measures the acceptance of each drafter by kind of prompt and sampling, and what truncating q on the wire
// costs in acceptance. Nothing here depends on the machine's speed; bench_pair measures times.
#include <array>
#include <iostream>

#include "absl/strings/str_format.h"
#include "bench/pair_helpers.h"
#include "bench/tally.h"
#include "common/obs/flags.h"

namespace outrider {
namespace {

// Enough to complete every draft, however busy the machine is.
constexpr double kDraftBudgetSeconds = 60;

struct Flags {
  LocalServicesOptions services;
  std::string prompts = "bench/prompts.json";
  std::vector<std::string> sets;  // empty: all sets of the file
  std::string json;
  int tokens = 10000;
  int max_tokens = 200;
  int k = 4;
};

struct Setting {
  const char* name;
  double temperature;
  uint32_t top_k;  // 0: all
};
constexpr std::array<Setting, 3> kSettings = {
    {{"temperature 0", 0, 0}, {"temperature 1", 1, 0}, {"temperature 1, top-k 40", 1, 40}}};

struct Configuration {
  v1::DrafterKind drafter = v1::DRAFTER_KIND_MODEL;
  Setting setting = kSettings[1];
  uint32_t top_n = 0;  // 0: the draft service's default
};

struct Cell {
  SpeculationTally tally;
  double bytes = 0;

  double bytes_per_token() const { return tally.drafted > 0 ? bytes / tally.drafted : 0; }
  nlohmann::ordered_json Json() const {
    return {{"tokens", tally.tokens},
            {"alpha", tally.alpha()},
            {"acceptance_rate", tally.acceptance_rate()},
            {"tokens_per_call", tally.tokens_per_call()},
            {"bytes_per_drafted_token", bytes_per_token()}};
  }
};

std::string DropLastWords(std::string text, int words) {
  for (; words > 0 && text.rfind(' ') != std::string::npos; --words) text.resize(text.rfind(' '));
  return text;
}

// Runs the prompts until the target has generated enough tokens. Each further pass drops one more word from
// the end of each prompt; otherwise greedy answers would repeat.
absl::StatusOr<Cell> Measure(const Client& client, const Flags& flags,
                             const std::vector<std::string>& prompts, const Configuration& configuration) {
  Cell cell;
  for (int pass = 0; cell.tally.tokens < flags.tokens; ++pass) {
    for (const std::string& prompt : prompts) {
      if (cell.tally.tokens >= flags.tokens) break;
      v1::GenerateRequest request =
          MakeRequest(DropLastWords(prompt, pass), configuration.setting.temperature, flags.k,
                      static_cast<uint64_t>(pass) + 1, flags.max_tokens);
      request.set_trace(true);
      if (configuration.setting.top_k > 0) request.mutable_sampling()->set_top_k(configuration.setting.top_k);
      request.mutable_speculation()->set_drafter(configuration.drafter);
      request.mutable_speculation()->set_draft_top_n(configuration.top_n);
      auto answer = client.Generate(
          request, [&](const v1::GenerateResponse& chunk) { cell.bytes += chunk.trace().draft_bytes(); });
      if (!answer.ok()) return answer.status();
      cell.tally.Add(answer->finish);
    }
  }
  return cell;
}

// Measures every drafter with every setting.
absl::StatusOr<nlohmann::ordered_json> MeasureSet(const Client& client, const Flags& flags,
                                                  const std::string& set) {
  std::vector<std::pair<std::string, v1::DrafterKind>> drafters = {{"model", v1::DRAFTER_KIND_MODEL},
                                                                   {"auto", v1::DRAFTER_KIND_AUTO},
                                                                   {"n-gram", v1::DRAFTER_KIND_NGRAM},
                                                                   {"copy", v1::DRAFTER_KIND_COPY},
                                                                   {"random", v1::DRAFTER_KIND_RANDOM}};
  if (!flags.services.drafter_corpus.empty()) {
    drafters.push_back({"bigram", v1::DRAFTER_KIND_BIGRAM});
    drafters.push_back({"unigram", v1::DRAFTER_KIND_UNIGRAM});
  }
  auto prompts = LoadPrompts({.file = flags.prompts, .set = set});
  if (!prompts.ok()) return prompts.status();
  absl::PrintF("\n%s, K = %d; alpha, accepted of drafted, tokens a call\n%-8s", set, flags.k, "");
  for (const Setting& setting : kSettings) absl::PrintF(" %25s", setting.name);
  absl::PrintF("\n");
  nlohmann::ordered_json rows;
  for (const auto& [name, kind] : drafters) {
    absl::PrintF("%-8s", name);
    for (const Setting& setting : kSettings) {
      auto cell = Measure(client, flags, *prompts, {.drafter = kind, .setting = setting});
      if (!cell.ok()) return cell.status();
      absl::PrintF(" %11.3f %6.3f %6.2f", cell->tally.alpha(), cell->tally.acceptance_rate(),
                   cell->tally.tokens_per_call());
      std::fflush(stdout);
      nlohmann::ordered_json row = {
          {"set", set}, {"drafter", name}, {"temperature", setting.temperature}, {"top_k", setting.top_k}};
      row.update(cell->Json());
      rows.push_back(std::move(row));
    }
    absl::PrintF("\n");
  }
  return rows;
}

// Measures the model drafter at temperature 1 for several sizes of q.
absl::StatusOr<nlohmann::ordered_json> MeasureTopN(const Client& client, const Flags& flags,
                                                   const std::string& set) {
  auto prompts = LoadPrompts({.file = flags.prompts, .set = set});
  if (!prompts.ok()) return prompts.status();
  absl::PrintF("\n%s, model, temperature 1, by tokens of q sent\n%-12s %7s %10s %12s %12s\n", set, "",
               "alpha", "accepted", "tokens/call", "bytes/token");
  constexpr uint32_t kAll = 1 << 20;
  nlohmann::ordered_json rows;
  for (const uint32_t n : {1U, 4U, 16U, 32U, 64U, 128U, 256U, 1024U, kAll}) {
    const std::string name = n == kAll ? "all (dense)" : absl::StrCat(n);
    auto cell = Measure(client, flags, *prompts, {.top_n = n});
    if (!cell.ok()) return cell.status();
    absl::PrintF("%-12s %7.3f %10.3f %12.2f %12.1f\n", name, cell->tally.alpha(),
                 cell->tally.acceptance_rate(), cell->tally.tokens_per_call(), cell->bytes_per_token());
    nlohmann::ordered_json row = {{"name", name}};
    row.update(cell->Json());
    rows.push_back(std::move(row));
  }
  return rows;
}

absl::Status Run(const Client& client, Flags& flags) {
  auto report = BeginReport(client);
  if (!report.ok()) return report.status();
  (*report)["k"] = flags.k;
  for (const std::string& set : flags.sets) {
    auto rows = MeasureSet(client, flags, set);
    if (!rows.ok()) return rows.status();
    for (nlohmann::ordered_json& row : *rows) (*report)["rows"].push_back(std::move(row));
  }
  auto rows = MeasureTopN(client, flags, flags.sets[0]);
  if (!rows.ok()) return rows.status();
  (*report)["top_n"] = *rows;
  if (!flags.json.empty()) std::ofstream(flags.json) << report->dump(1) << "\n";
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Measures the acceptance of each drafter.", "bench_alpha");
  AddPairFlags(app, flags.services);
  app.add_option("--prompts", flags.prompts, "JSON file with named sets of texts")
      ->check(CLI::ExistingFile)
      ->capture_default_str();
  app.add_option("--set", flags.sets, "the sets of prompts to use; default: all");
  app.add_option("--drafter-corpus", flags.services.drafter_corpus,
                 "text for the unigram and bigram drafters, which need one");
  app.add_option("--tokens", flags.tokens, "tokens generated per figure")
      ->check(CLI::Range(16, 1 << 30))
      ->capture_default_str();
  app.add_option("--max-tokens", flags.max_tokens, "tokens per generation")
      ->check(CLI::Range(16, 4096))
      ->capture_default_str();
  app.add_option("--draft-tokens", flags.k, "K")->check(CLI::Range(1, 16))->capture_default_str();
  app.add_option("--json", flags.json, "file for the results");
  if (const std::optional<int> end = ParseCommandLine(app, argc, argv)) return *end;

  if (flags.sets.empty()) {
    const auto file = ReadPromptFile(flags.prompts);
    if (!file.ok()) return Fail("bench_alpha", file.status());
    for (const auto& [set, unused] : file->items()) flags.sets.push_back(set);
  }
  for (const std::string& set : flags.sets) {
    const auto prompts = LoadPrompts({.file = flags.prompts, .set = set});
    if (!prompts.ok()) return Fail("bench_alpha", prompts.status());
  }
  flags.services.draft_budget_seconds = kDraftBudgetSeconds;
  auto pair = RunningPair::Start(flags.services);
  if (!pair.ok()) return Fail("bench_alpha", pair.status());
  const absl::Status status = Run(pair->client, flags);
  return status.ok() ? 0 : Fail("bench_alpha", status);
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) { return outrider::Main(argc, argv); }
