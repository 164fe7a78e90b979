// Models on the emulated GPU, and steps of such models.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/gpu/gpu_model.h"
#include "tests/unit/device_worker_testing.h"

namespace outrider::testing {

inline RunnerOptions ModelOnGpu() { return OnGpu(Options(""), "bfloat16"); }

inline std::unique_ptr<Runner> LoadOnGpu(const RunnerOptions& options) {
  return Runner::Load(options, Gpu()).value();
}

// Runs steps of several sequences, with tasks and without, and returns their results.
class Steps {
 public:
  explicit Steps(Runner& runner) : runner_(runner) {}

  // A step of `sequences`, each of `length` tokens, `rows` of them new. Returns logits and drafted tokens.
  std::vector<float> Run(int sequences, int rows, int length, int draft_tokens) {
    const auto params = Params({.name = ""}, /*seed=*/1);
    std::vector<DeviceTask> tasks(draft_tokens > 0 ? static_cast<size_t>(sequences) : 0);
    for (DeviceTask& task : tasks) {
      task = {.params = params.get(),
              .round_start = static_cast<uint64_t>(length),
              .work = ProposeTask{draft_tokens}};
    }
    const int blocks = (length + draft_tokens) / runner_.block_size() + 1;
    std::vector<std::vector<TokenId>> tokens;
    std::vector<std::vector<BlockId>> tables;
    std::vector<SequenceRows> batch;
    for (int s = 0; s < sequences; ++s) {
      tokens.push_back(SomeTokens(length, runner_.config().decoder.vocab_size, static_cast<uint32_t>(s + 1)));
      for (std::vector<BlockId>& table = tables.emplace_back(); static_cast<int>(table.size()) < blocks;) {
        table.push_back(s * blocks + static_cast<int>(table.size()));
      }
    }
    for (size_t s = 0; s < tokens.size(); ++s) {
      const absl::Span<const TokenId> all = tokens[s];
      const size_t cached = static_cast<size_t>(length - rows);
      if (cached > 0) {
        const SequenceRows prompt{all.first(cached), 0, tables[s], 0};
        EXPECT_TRUE(runner_.Forward({&prompt, 1}).ok());
      }
      batch.push_back(
          {all.subspan(cached), length - rows, tables[s], 1, tasks.empty() ? nullptr : &tasks[s]});
    }
    const absl::StatusOr<LogitsView> logits = runner_.Forward(batch);
    EXPECT_TRUE(logits.ok()) << logits.status();
    std::vector<float> found;
    for (int r = 0; logits.ok() && r < logits->rows; ++r) {
      found.insert(found.end(), logits->row(r).begin(), logits->row(r).end());
    }
    for (const DeviceTask& task : tasks) {
      for (const ProposalNode& node : std::get<ProposeTask>(task.work).proposal) {
        found.push_back(static_cast<float>(node.token));
      }
    }
    return found;
  }

 private:
  Runner& runner_;
};

}  // namespace outrider::testing
