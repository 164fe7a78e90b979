// The speed of one stream with each of several ways to draft, in turns.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "bench/tally.h"
#include "bench/tree_modes.h"

namespace outrider {

// The median over turns, with the least and the largest: what differs by less is not told apart.
struct Spread {
  double median = 0, least = 0, most = 0;

  static Spread Of(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return {values[values.size() / 2], values.front(), values.back()};
  }
  std::string Text() const { return absl::StrFormat("%.2f (%.2f-%.2f)", median, least, most); }
  nlohmann::ordered_json Json() const { return {{"median", median}, {"least", least}, {"most", most}}; }
};

struct TreeSpeedFlags {
  int turns = 5;
  int max_tokens = 200;
};

// Each turn has all prompts, and each prompt all modes, forth and back in alternation, so that a drift of the
// machine hits all of them. What counts is the ratio within a turn.
class TreeSpeed {
 public:
  TreeSpeed(const Client& client, const TreeSpeedFlags& flags, const std::vector<std::string>& prompts,
            const std::vector<TreeMode>& modes)
      : client_(client), flags_(flags), prompts_(prompts), modes_(modes), results_(modes.size()) {}

  absl::Status Run(double temperature) {
    // The policy learns costs on first use.
    for (const TreeMode& mode : modes_) {
      for (size_t prompt = 0; prompt < prompts_.size() && !mode.k; ++prompt) {
        Result unused;
        if (absl::Status status = Generate(mode, prompt, temperature, 1, unused); !status.ok()) return status;
      }
    }
    for (int turn = 1; turn <= flags_.turns; ++turn) {
      for (Result& result : results_) result.StartTurn();
      for (size_t prompt = 0; prompt < prompts_.size(); ++prompt) {
        for (size_t i = 0; i < modes_.size(); ++i) {
          const size_t mode = (prompt + static_cast<size_t>(turn)) % 2 == 0 ? i : modes_.size() - 1 - i;
          absl::Status status = Generate(modes_[mode], prompt, temperature, turn, results_[mode]);
          if (!status.ok()) return status;
        }
      }
    }
    return absl::OkStatus();
  }

  // Prints and returns the table.
  nlohmann::ordered_json Report(double temperature) const {
    const size_t chain = BestChain();
    absl::PrintF("\ntemperature %g, medians of %d turns (least-largest)\n%-13s %9s %18s %18s %12s %6s\n",
                 temperature, flags_.turns, "", "tokens/s", "vs plain",
                 absl::StrCat("vs ", modes_[chain].name), "tokens/call", "trees");
    nlohmann::ordered_json report = {{"temperature", temperature}, {"best_chain", modes_[chain].name}};
    for (size_t i = 0; i < modes_.size(); ++i) {
      const Result& result = results_[i];
      const Spread rate = Spread::Of(result.rates);
      const Spread to_plain = Ratio(i, 0), to_chain = Ratio(i, chain);
      absl::PrintF("%-13s %9.0f %18s %18s %12.2f %6.2f\n", modes_[i].name, rate.median, to_plain.Text(),
                   to_chain.Text(), result.tally.tokens_per_call(), result.tree_share());
      report["modes"].push_back({{"mode", modes_[i].name},
                                 {"tokens_per_second", rate.Json()},
                                 {"ratio_to_plain", to_plain.Json()},
                                 {"ratio_to_best_chain", to_chain.Json()},
                                 {"tokens_per_call", result.tally.tokens_per_call()},
                                 {"share_of_trees", result.tree_share()}});
    }
    const Spread to_policy = Ratio(modes_.size() - 1, modes_.size() - 2);
    absl::PrintF("auto: %s of the policy with chains alone\n", to_policy.Text());
    report["auto_to_policy"] = to_policy.Json();
    return report;
  }

 private:
  struct Result {
    SpeculationTally tally;
    double tree_rounds = 0;
    double tokens = 0, seconds = 0;  // of this turn
    std::vector<double> rates;       // tokens a second, by turn

    void StartTurn() {
      tokens = seconds = 0;
      rates.push_back(0);
    }
    void Add(const v1::Finish& finish) {
      tally.Add(finish);
      tree_rounds += static_cast<double>(finish.speculation().tree_rounds());
      tokens += finish.usage().completion_tokens() - 1.0;
      seconds += finish.usage().decode_seconds();
      if (!rates.empty()) rates.back() = tokens / seconds;
    }
    double tree_share() const { return tree_rounds / tally.rounds; }
  };

  absl::Status Generate(const TreeMode& mode, size_t prompt, double temperature, int seed,
                        Result& result) const {
    const auto answer = client_.Generate(
        MakeRequest(mode, prompts_[prompt], temperature, static_cast<uint64_t>(seed), flags_.max_tokens),
        nullptr);
    if (answer.ok()) result.Add(answer->finish);
    return answer.status();
  }

  // Of two modes, turn by turn.
  Spread Ratio(size_t mode, size_t other) const {
    std::vector<double> ratios;
    for (size_t turn = 0; turn < results_[mode].rates.size(); ++turn) {
      ratios.push_back(results_[mode].rates[turn] / results_[other].rates[turn]);
    }
    return Spread::Of(std::move(ratios));
  }

  size_t BestChain() const {
    size_t best = 0;
    for (size_t i = 0; i < modes_.size(); ++i) {
      if (modes_[i].is_chain() && (best == 0 || Ratio(i, 0).median > Ratio(best, 0).median)) best = i;
    }
    return best;
  }

  const Client& client_;
  const TreeSpeedFlags flags_;
  const std::vector<std::string>& prompts_;
  const std::vector<TreeMode>& modes_;
  std::vector<Result> results_;
};

}  // namespace outrider
