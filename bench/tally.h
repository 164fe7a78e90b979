// Speculation statistics summed over several generations.
#pragma once

#include <algorithm>
#include <vector>

#include "outrider/v1/inference.pb.h"

namespace outrider {

// Leaves out the first token and the prompt's round, which has no draft.
struct SpeculationTally {
  double tokens = 0, rounds = 0, drafted = 0, accepted = 0;
  double judged = 0;   // drafted tokens up to and including the first rejection of each draft
  double overlap = 0;  // sum of sum_x min(p(x), q(x)) over judged tokens; token rule only
  std::vector<double> drafted_at, accepted_at;  // by position in the draft

  void Add(const v1::Finish& finish) {
    const v1::SpeculationStats& stats = finish.speculation();
    tokens += finish.usage().completion_tokens() - 1.0;
    rounds += static_cast<double>(stats.rounds()) - 1;
    drafted += static_cast<double>(stats.drafted());
    accepted += static_cast<double>(stats.accepted());
    const auto positions = static_cast<size_t>(stats.drafted_per_position_size());
    drafted_at.resize(std::max(drafted_at.size(), positions));
    accepted_at.resize(drafted_at.size());
    double here = 0;
    for (int i = 0; i < static_cast<int>(positions); ++i) {
      const auto drafted_here = static_cast<double>(stats.drafted_per_position(i));
      here += i == 0 ? drafted_here
                     : std::min(drafted_here, static_cast<double>(stats.accepted_per_position(i - 1)));
      drafted_at[static_cast<size_t>(i)] += drafted_here;
      accepted_at[static_cast<size_t>(i)] += static_cast<double>(stats.accepted_per_position(i));
    }
    judged += here;
    overlap += stats.expected_acceptance() * here;
  }

  // The estimate of alpha: the mean of sum_x min(p(x), q(x)) over judged tokens; 0 if nothing was drafted.
  double alpha() const { return judged > 0 ? overlap / judged : 0; }
  double acceptance_rate() const { return drafted > 0 ? accepted / drafted : 0; }
  double tokens_per_call() const { return tokens / rounds; }
};

}  // namespace outrider
