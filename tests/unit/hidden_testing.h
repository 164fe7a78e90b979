// The engines whose hidden states are tested, and their results for a step.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/device_tree_testing.h"
#include "tests/unit/engine_goldens.h"

namespace outrider::testing {

struct EngineUnderTest {
  std::string engine, kernels, dtype;
  // The largest difference that rounding explains, as a share of the spread of a row. 0: the bits are the
  // same.
  double tolerance = 0;
  // The same for a comparison with numbers that were not rounded.
  double tolerance_of_dtype = 0;
  std::vector<std::string> models;  // to run it with

  RunnerOptions Options() const {
    RunnerOptions options = testing::Options(models[0]);
    options.engine = engine;
    options.kernels = kernels;
    options.dtype = dtype;
    return options;
  }
  std::string name() const { return absl::StrCat(kernels.empty() ? engine : kernels, "_", dtype); }
};

// The engines of a test program. Each program with these tests defines this.
std::vector<EngineUnderTest> EnginesUnderTest();

// How many rows differ by more than the engine's rounding explains.
inline int Differing(const EngineUnderTest& engine, const Logits& found, const Logits& expected) {
  if (engine.tolerance == 0) return DifferentRows(found, expected);
  EXPECT_EQ(found.size(), expected.size());
  int different = 0;
  for (size_t r = 0; r < std::min(found.size(), expected.size()); ++r) {
    different += Difference(found[r], expected[r]) <= engine.tolerance ? 0 : 1;
  }
  return different;
}

// Rows of logits and rows of hidden states.
struct Computed {
  Logits logits, hidden;

  void Add(const Computed& other) {
    logits.insert(logits.end(), other.logits.begin(), other.logits.end());
    hidden.insert(hidden.end(), other.hidden.begin(), other.hidden.end());
  }
};

inline Computed Copied(const absl::StatusOr<LogitsView>& view) {
  Computed computed;
  EXPECT_TRUE(view.ok()) << view.status();
  if (!view.ok()) return computed;
  for (int r = 0; r < view->rows; ++r) computed.logits.push_back(RowOf(*view, r));
  for (int r = 0; r < view->hidden.rows; ++r) {
    computed.hidden.emplace_back(view->hidden.row(r).begin(), view->hidden.row(r).end());
  }
  return computed;
}

inline Computed Compute(Runner& runner, absl::Span<const SequenceRows> batch, const PassOptions& pass = {}) {
  return Copied(runner.Forward(batch, pass));
}

inline Logits LastOf(const Logits& rows, size_t count) {
  return {rows.end() - static_cast<std::ptrdiff_t>(count), rows.end()};
}

// A sequence without a tree, in its own blocks.
struct Chain {
  std::vector<TokenId> tokens;
  std::vector<BlockId> blocks;

  // The rows in the slots [begin, end).
  SequenceRows Rows(size_t begin, size_t end, int logit_rows, int hidden_rows) const {
    return {.tokens = absl::MakeConstSpan(tokens).subspan(begin, end - begin),
            .position = static_cast<int>(begin),
            .blocks = blocks,
            .logit_rows = logit_rows,
            .hidden_rows = hidden_rows};
  }
};

inline Chain SomeChain(const Runner& runner, int tokens, uint32_t seed, BlockId first_block) {
  return {SomeTokens(tokens, runner.config().decoder.vocab_size, seed),
          BlocksFor(runner, tokens, first_block)};
}

// All logits and hidden states of the tokens from `begin` on, in chunks.
inline Computed ComputeChunks(Runner& runner, const Chain& chain, size_t begin, size_t chunk,
                              const PassOptions& pass = {}) {
  Computed computed;
  for (; begin < chain.tokens.size(); begin += chunk) {
    const size_t end = std::min(begin + chunk, chain.tokens.size());
    const int rows = static_cast<int>(end - begin);
    const SequenceRows part = chain.Rows(begin, end, rows, rows);
    computed.Add(Compute(runner, {&part, 1}, pass));
  }
  return computed;
}

}  // namespace outrider::testing
