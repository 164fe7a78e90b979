// Speeds of several ways to draft for one stream, in turns.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/spread.h"
#include "bench/tally.h"
#include "bench/tree_modes.h"

namespace outrider {

struct TurnsFlags {
  int turns = 5;
  int max_tokens = 200;
};

struct TurnsOfMode {
  SpeculationTally tally;
  double tree_rounds = 0;
  double tokens = 0, seconds = 0;  // of this turn
  std::vector<double> rates;       // tokens per second, by turn

  void Start() {
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

// Each turn runs all prompts, and each prompt all modes, alternately forwards and backwards, so that a drift
// of the machine affects all of them. The result is the ratio within a turn.
class Turns {
 public:
  Turns(const Client& client, const TurnsFlags& flags, const std::vector<std::string>& prompts,
        const std::vector<TreeMode>& modes)
      : client_(client), flags_(flags), prompts_(prompts), modes_(modes), results_(modes.size()) {}

  absl::Status Run(double temperature) {
    // The policy learns costs on first use.
    for (const TreeMode& mode : modes_) {
      for (size_t prompt = 0; prompt < prompts_.size() && !mode.k; ++prompt) {
        TurnsOfMode unused;
        if (absl::Status status = Generate(mode, prompt, temperature, 1, unused); !status.ok()) return status;
      }
    }
    for (int turn = 1; turn <= flags_.turns; ++turn) {
      for (TurnsOfMode& result : results_) result.Start();
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

  const TurnsOfMode& of(size_t mode) const { return results_[mode]; }
  // The ratio of the speeds of two modes, turn by turn.
  Spread Ratio(size_t mode, size_t other) const {
    std::vector<double> ratios;
    for (size_t turn = 0; turn < results_[mode].rates.size(); ++turn) {
      ratios.push_back(results_[mode].rates[turn] / results_[other].rates[turn]);
    }
    return Spread::Of(ratios);
  }

 private:
  absl::Status Generate(const TreeMode& mode, size_t prompt, double temperature, int seed,
                        TurnsOfMode& result) const {
    const auto answer = client_.Generate(
        MakeRequest(mode, prompts_[prompt], temperature, static_cast<uint64_t>(seed), flags_.max_tokens),
        nullptr);
    if (answer.ok()) result.Add(answer->finish);
    return answer.status();
  }

  const Client& client_;
  const TurnsFlags flags_;
  const std::vector<std::string>& prompts_;
  const std::vector<TreeMode>& modes_;
  std::vector<TurnsOfMode> results_;
};

}  // namespace outrider
