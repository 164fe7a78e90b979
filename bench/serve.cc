// Measures many streams of a pair through all three services: plain decoding, speculative decoding with a
// fixed K, and with the K that the coordinator chooses. Either a closed loop, in which each of N streams
// always has one request in flight, or an open loop with Poisson arrivals at a given rate. Modes take turns
// in short slices, so that drifting machine speed favours none of them. The result is the ratio within a
// turn, and how far it differs between turns.
#include <atomic>
#include <numeric>
#include <optional>
#include <random>

#include "absl/strings/str_format.h"
#include "bench/load.h"
#include "bench/pair_helpers.h"
#include "bench/run_benchmark.h"
#include "bench/spread.h"

namespace outrider {
namespace {

// The share at the start of each slice that is not counted, because streams are still starting.
constexpr double kRampShare = 0.25;

struct Flags {
  LocalServicesOptions services;
  PromptFlags prompts;
  std::vector<int> streams = {1, 2, 4, 8, 16, 32, 64};
  std::vector<double> rates;
  std::vector<double> temperatures = {0, 1};
  std::vector<int> fixed_k = {2, 4};
  int max_tokens = 32;
  SliceFlags slices{.turns = 5, .seconds = 1.6};
};

struct Mode {
  std::string name;
  std::optional<int> k;  // nullopt: the coordinator chooses
};

// Sums over the counted parts of slices. Times are in seconds.
struct Tally {
  double window = 0;
  double tokens = 0, drafted = 0, accepted = 0, refused = 0;
  std::vector<double> first_token, per_token, request;

  double Rate() const { return tokens / window; }
  void Add(const Tally& other) {
    for (double Tally::*sum :
         {&Tally::window, &Tally::tokens, &Tally::drafted, &Tally::accepted, &Tally::refused}) {
      this->*sum += other.*sum;
    }
    for (auto list : {&Tally::first_token, &Tally::per_token, &Tally::request}) {
      (this->*list).insert((this->*list).end(), (other.*list).begin(), (other.*list).end());
    }
  }
};

// Records the requests of one stream, one after another. A token counts if it arrives within the window, a
// time to first token if its request was sent within it. All other values count if the request was sent
// within the window (`by_arrival`) or if it ends within it: in a closed loop, the slowest requests would not
// end within the window.
class RequestRecorder {
 public:
  RequestRecorder(absl::Time from, absl::Time to, bool by_arrival, int max_tokens)
      : from_(from), to_(to), by_arrival_(by_arrival), max_tokens_(max_tokens) {}

  void OnChunk(absl::Time sent, const v1::GenerateResponse& chunk) {
    const absl::Time now = absl::Now();
    if (InWindow(now)) tally_.tokens += chunk.tokens_size();
    if (chunk.position() == 0 && chunk.tokens_size() > 0) {
      first_ = now;
      if (InWindow(sent)) tally_.first_token.push_back(absl::ToDoubleSeconds(now - sent));
    }
    if (!chunk.has_finish() || !InWindow(by_arrival_ ? sent : now)) return;
    const double tokens = chunk.finish().usage().completion_tokens();
    tally_.drafted += static_cast<double>(chunk.finish().speculation().drafted());
    tally_.accepted += static_cast<double>(chunk.finish().speculation().accepted());
    if (tokens < max_tokens_) return;  // the shortened first request of a stream
    tally_.per_token.push_back(absl::ToDoubleSeconds(now - first_) / (tokens - 1));
    tally_.request.push_back(absl::ToDoubleSeconds(now - sent));
  }
  void OnRefused(absl::Time sent) { tally_.refused += InWindow(sent) ? 1 : 0; }

  const Tally& tally() const { return tally_; }

 private:
  bool InWindow(absl::Time time) const { return time >= from_ && time < to_; }

  const absl::Time from_, to_;
  const bool by_arrival_;
  const int max_tokens_;
  absl::Time first_;
  Tally tally_;
};

class ServeBench {
 public:
  ServeBench(const Client& client, const Flags& flags, std::vector<std::string> prompts)
      : client_(client), flags_(flags), prompts_(std::move(prompts)) {
    modes_.push_back({"plain", 0});
    for (int k : flags.fixed_k) modes_.push_back({absl::StrFormat("K = %d", k), k});
    modes_.push_back({"policy", std::nullopt});
  }

  absl::StatusOr<nlohmann::ordered_json> RunClosedLoops(double temperature, int streams) {
    absl::PrintF("\ntemperature %g, %d streams\n", temperature, streams);
    auto result = MeasureInTurns(
        [&](const Mode& mode, int turn) { return RunClosedSlice(mode, temperature, streams, turn); });
    if (result.ok()) result->update({{"temperature", temperature}, {"streams", streams}});
    return result;
  }

  absl::StatusOr<nlohmann::ordered_json> RunOpenLoop(double temperature, double rate) {
    absl::PrintF("\ntemperature %g, %g requests/s\n", temperature, rate);
    auto result = MeasureInTurns(
        [&](const Mode& mode, int turn) { return RunOpenSlice(mode, temperature, rate, turn); });
    if (result.ok()) result->update({{"temperature", temperature}, {"requests_per_second", rate}});
    return result;
  }

  // Compares the policy with the best of the other modes in each measurement. There must be at least one.
  nlohmann::ordered_json Summary() const {
    const Spread policy = Spread::Of(policy_to_best_);
    const double mean = std::accumulate(policy_to_best_.begin(), policy_to_best_.end(), 0.0) /
                        static_cast<double>(policy_to_best_.size());
    absl::PrintF("\npolicy / best of the others, medians of %d turns: %.3f in the mean, %.3f to %.3f\n",
                 flags_.slices.turns, mean, policy.least, policy.most);
    return {{"mean", mean}, {"min", policy.least}, {"max", policy.most}};
  }

 private:
  using Slice = std::function<absl::StatusOr<Tally>(const Mode&, int turn)>;

  // `index` selects prompt and seed, the same ones for every mode with a fixed K.
  v1::GenerateRequest Request(const Mode& mode, double temperature, int index, int max_tokens) {
    // The number keeps a prompt from being found in the prefix cache because another mode has used it.
    const std::string prompt =
        absl::StrFormat("%d. %s", ++requests_, prompts_[static_cast<size_t>(index) % prompts_.size()]);
    v1::GenerateRequest request =
        MakeRequest(prompt, temperature, mode.k.value_or(0), static_cast<uint64_t>(index) + 1, max_tokens);
    if (!mode.k) LeaveKToPolicy(request);
    return request;
  }

  absl::StatusOr<Tally> RunClosedSlice(const Mode& mode, double temperature, int streams, int turn) {
    const absl::Duration duration = absl::Seconds(flags_.slices.seconds);
    const absl::Time start = absl::Now();
    std::vector<RequestRecorder> recorders(
        static_cast<size_t>(streams),
        RequestRecorder(start + kRampShare * duration, start + duration, false, flags_.max_tokens));
    const absl::Status status = RunClosedLoop(
        client_, {.streams = streams,
                  .duration = duration,
                  .request =
                      [&](int stream, int index) {
                        // The first requests have different lengths, so that streams do not run in step.
                        const int tokens = index > 0
                                               ? flags_.max_tokens
                                               : std::max(2, flags_.max_tokens * (stream + 1) / streams);
                        const int id = turn * 10000 + index * streams + stream;
                        return Request(mode, temperature, id, tokens);
                      },
                  .on_chunk = [&](int stream, absl::Time sent,
                                  const auto& chunk) { recorders[stream].OnChunk(sent, chunk); }});
    if (!status.ok()) return status;
    return Sum(recorders, duration);
  }

  // Uses the same arrivals for each mode of a turn. Returns once all requests are answered.
  absl::StatusOr<Tally> RunOpenSlice(const Mode& mode, double temperature, double rate, int turn) {
    std::mt19937_64 random(static_cast<uint64_t>(turn));
    std::exponential_distribution<double> gap(rate);
    std::vector<double> arrivals;
    double next = gap(random);
    while (next < flags_.slices.seconds) {
      arrivals.push_back(next);
      next += gap(random);
    }

    const absl::Duration duration = absl::Seconds(flags_.slices.seconds);
    const absl::Time start = absl::Now();
    std::vector<RequestRecorder> recorders(
        arrivals.size(),
        RequestRecorder(start + kRampShare * duration, start + duration, true, flags_.max_tokens));
    std::vector<absl::Status> errors(arrivals.size());
    {
      std::vector<std::jthread> threads;
      for (size_t i = 0; i < arrivals.size(); ++i) {
        const absl::Time due = start + absl::Seconds(arrivals[i]);
        absl::SleepFor(due - absl::Now());
        threads.emplace_back([&, i, due] {
          const int id = turn * 10000 + static_cast<int>(i);
          const auto on_chunk = [&](const v1::GenerateResponse& chunk) { recorders[i].OnChunk(due, chunk); };
          auto answer = client_.Generate(Request(mode, temperature, id, flags_.max_tokens), on_chunk);
          if (absl::IsResourceExhausted(answer.status())) {
            recorders[i].OnRefused(due);
          } else {
            errors[i] = answer.status();
          }
        });
      }
    }
    for (const absl::Status& error : errors) {
      if (!error.ok()) return error;
    }
    return Sum(recorders, duration);
  }

  static Tally Sum(const std::vector<RequestRecorder>& recorders, absl::Duration duration) {
    Tally sum;
    for (const RequestRecorder& recorder : recorders) sum.Add(recorder.tally());
    sum.window = (1 - kRampShare) * absl::ToDoubleSeconds(duration);
    return sum;
  }

  // Runs one uncounted slice, in which services and policy warm up. Then runs every mode once per turn,
  // alternately forwards and backwards, so that a drift cancels out.
  absl::StatusOr<nlohmann::ordered_json> MeasureInTurns(const Slice& slice) {
    if (auto warm = slice(modes_.back(), 0); !warm.ok()) return warm.status();
    std::vector<std::vector<Tally>> tallies(modes_.size());  // by mode and turn
    for (int turn = 1; turn <= flags_.slices.turns; ++turn) {
      for (size_t i = 0; i < modes_.size(); ++i) {
        const size_t mode = turn % 2 == 1 ? i : modes_.size() - 1 - i;
        auto tally = slice(modes_[mode], turn);
        if (!tally.ok()) return tally.status();
        if (tally->tokens == 0) {
          return absl::DeadlineExceededError(
              "no token came in a slice: use a longer --slice or a quieter machine");
        }
        tallies[mode].push_back(*std::move(tally));
      }
    }
    return Report(tallies);
  }

  static Spread RatesOf(const std::vector<Tally>& turns) {
    std::vector<double> rates;
    for (const Tally& tally : turns) rates.push_back(tally.Rate());
    return Spread::Of(rates);
  }
  static Spread RatiosOf(const std::vector<Tally>& turns, const std::vector<Tally>& to) {
    std::vector<double> ratios;
    for (size_t i = 0; i < turns.size(); ++i) ratios.push_back(turns[i].Rate() / to[i].Rate());
    return Spread::Of(ratios);
  }

  nlohmann::ordered_json Report(const std::vector<std::vector<Tally>>& tallies) {
    absl::PrintF("%-8s %20s %9s %11s %24s %24s %24s\n", "", "tokens/s, min to max", "vs plain", "acceptance",
                 "first token ms 50/95/99", "per token ms 50/95/99", "request ms 50/95/99");
    nlohmann::ordered_json rows;
    size_t best = 0;
    for (size_t i = 0; i < modes_.size(); ++i) {
      Tally tally;
      for (const Tally& turn : tallies[i]) tally.Add(turn);
      const double acceptance = tally.drafted > 0 ? tally.accepted / tally.drafted : 0;
      const Spread rate = RatesOf(tallies[i]);
      const Spread ratio = RatiosOf(tallies[i], tallies[0]);
      if (modes_[i].k && rate.median > RatesOf(tallies[best]).median) best = i;
      absl::PrintF("%-8s %6.0f %6.0f-%6.0f %9.2f %11.3f %24s %24s %24s\n", modes_[i].name, rate.median,
                   rate.least, rate.most, ratio.median, acceptance, Milliseconds(tally.first_token),
                   Milliseconds(tally.per_token), Milliseconds(tally.request));
      rows.push_back({{"mode", modes_[i].name},
                      {"tokens_per_second", rate.median},
                      {"tokens_per_second_spread", rate.Json()},
                      {"ratio_to_plain", ratio.median},
                      {"acceptance_rate", acceptance},
                      {"requests", tally.request.size()},
                      {"refused", tally.refused},
                      {"first_token_seconds", Percentiles(tally.first_token)},
                      {"per_token_seconds", Percentiles(tally.per_token)},
                      {"request_seconds", Percentiles(tally.request)}});
    }
    const Spread policy = RatiosOf(tallies.back(), tallies[best]);
    policy_to_best_.push_back(policy.median);
    absl::PrintF("policy / %s, the best of the others: %.3f, %.3f to %.3f\n", modes_[best].name,
                 policy.median, policy.least, policy.most);
    return {{"modes", rows}, {"policy_to_best", policy.median}, {"policy_to_best_spread", policy.Json()}};
  }

  static std::string Milliseconds(std::vector<double> values) {
    if (values.empty()) return "-";
    return absl::StrFormat("%.2f/%.2f/%.2f", 1e3 * Percentile(values, .5), 1e3 * Percentile(values, .95),
                           1e3 * Percentile(values, .99));
  }

  const Client& client_;
  const Flags& flags_;
  const std::vector<std::string> prompts_;
  std::vector<Mode> modes_;
  std::vector<double> policy_to_best_;  // the medians that were reported
  std::atomic<int> requests_ = 0;
};

absl::StatusOr<nlohmann::ordered_json> Measure(const Flags& flags) {
  auto prompts = LoadPrompts(flags.prompts);
  if (!prompts.ok()) return prompts.status();
  auto pair = RunningPair::Start(flags.services);
  if (!pair.ok()) return pair.status();
  auto report = BeginReport(pair->client);
  if (!report.ok()) return report.status();
  (*report)["max_tokens"] = flags.max_tokens;
  ServeBench bench(pair->client, flags, *std::move(prompts));
  for (const double temperature : flags.temperatures) {
    for (const double rate : flags.rates) {
      auto result = bench.RunOpenLoop(temperature, rate);
      if (!result.ok()) return result.status();
      (*report)["open"].push_back(*std::move(result));
    }
    if (!flags.rates.empty()) continue;
    for (const int streams : flags.streams) {
      auto result = bench.RunClosedLoops(temperature, streams);
      if (!result.ok()) return result.status();
      (*report)["closed"].push_back(*std::move(result));
    }
  }
  (*report)["policy_to_best"] = bench.Summary();
  return report;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Compares plain and speculative decoding of a pair on many streams.", "bench_serve");
  AddPairFlags(app, flags.services);
  AddPromptFlags(app, flags.prompts);
  AddNumber(app, "--streams", flags.streams, "concurrent streams; a closed loop for each number", 1, 256);
  app.add_option("--rate", flags.rates, "requests per second, with Poisson arrivals; instead of closed loops")
      ->check(CLI::Range(0.1, 1e4));
  AddNumber(app, "--temperature", flags.temperatures, "one run for each", 0.0, 100.0);
  AddNumber(app, "--fixed-k", flags.fixed_k, "the K of the speculative modes", 1, 16);
  AddNumber(app, "--max-tokens", flags.max_tokens, "tokens per generation", 2, 4096);
  AddSliceFlags(app, flags.slices);
  return RunBenchmark(app, argc, argv, [&] { return Measure(flags); });
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) { return outrider::Main(argc, argv); }
