// Times of forward passes in the shape of a model, by number of rows.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/generated_model.h"
#include "bench/temporary_folder.h"
#include "common/engine/runner.h"

namespace outrider {

struct StepTimesOptions {
  ModelShape shape;
  std::string dtype = "auto";
  int threads = 0;
  std::vector<int> rows;  // ascending
  int repeats = 20;
};

// Each time is the fastest of several, since other programs only add time. A pass has the last committed
// token after a context of 256, and a tree that follows it. Numbers of rows take turns.
class StepTimes {
 public:
  static absl::StatusOr<StepTimes> Measure(const StepTimesOptions& options) {
    const TemporaryFolder folder;
    if (!folder.made() || !WriteModel(folder.path(), options.shape, RandomRows())) {
      return absl::UnavailableError("cannot write the weights: set TMPDIR");
    }
    RunnerOptions runner_options;
    runner_options.model_dir = folder.path();
    runner_options.dtype = options.dtype;
    runner_options.threads = options.threads;
    runner_options.kv_blocks = kBlocks;
    const auto runner = Runner::Load(runner_options);
    if (!runner.ok()) return runner.status();
    std::vector<TokenId> tokens(kContext);
    std::iota(tokens.begin(), tokens.end(), 1000);
    std::vector<BlockId> blocks(kBlocks);
    std::iota(blocks.begin(), blocks.end(), 0);
    const SequenceRows prompt{.tokens = tokens, .position = 0, .blocks = blocks};
    if (auto done = (*runner)->Forward({&prompt, 1}); !done.ok()) return done.status();

    StepTimes times;
    for (int repeat = 0; repeat <= options.repeats; ++repeat) {  // the first is a warm-up
      for (const int rows : options.rows) {
        std::vector<int> parents;
        for (int node = 0; node + 1 < rows; ++node) parents.push_back((node + 1) / 2 - 1);
        const SequenceRows step{.tokens = absl::MakeConstSpan(tokens).first(static_cast<size_t>(rows)),
                                .position = kContext,
                                .blocks = blocks,
                                .logit_rows = rows,
                                .task = nullptr,
                                .tree_begin = parents.empty() ? 0 : kContext + 1,
                                .parents = parents};
        const auto start = std::chrono::steady_clock::now();
        if (auto done = (*runner)->Forward({&step, 1}); !done.ok()) return done.status();
        const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
        if (repeat == 0) continue;
        double& fastest = times.seconds_.try_emplace(rows, time.count()).first->second;
        fastest = std::min(fastest, time.count());
      }
    }
    return times;
  }

  // Interpolates linearly between measured numbers of rows.
  double Seconds(double rows) const {
    const auto above = seconds_.lower_bound(static_cast<int>(std::ceil(rows)));
    if (above == seconds_.end()) return seconds_.rbegin()->second * rows / seconds_.rbegin()->first;
    if (above == seconds_.begin() || above->first == rows) return above->second;
    const auto below = std::prev(above);
    const double share = (rows - below->first) / (above->first - below->first);
    return below->second + share * (above->second - below->second);
  }
  const std::map<int, double>& by_rows() const { return seconds_; }

 private:
  static constexpr int kContext = 256;
  static constexpr int kBlocks = 32;  // of 16 tokens: the context and as many new rows

  std::map<int, double> seconds_;
};

}  // namespace outrider
