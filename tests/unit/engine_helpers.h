// Helpers for the engine's tests: a model directory, a runner, a sequence with its blocks.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/engine/cpu/kernels.h"
#include "common/engine/runner.h"
#include "tests/unit/some_of.h"

namespace outrider::testing {

using Logits = std::vector<std::vector<float>>;  // [rows][vocab]

inline const std::vector<std::string>& RandomModels() {
  static const auto& models =
      *new std::vector<std::string>{"mha-float32", "gqa3-sharded",     "gqa4-llama3-rope", "dim128-odd-sizes",
                                    "qwen2-bias",  "qwen3-head-norms", "mistral-window"};
  return models;
}
// Models whose stored weights are quantised.
inline const std::vector<std::string>& QuantisedModels() {
  static const auto& models = *new std::vector<std::string>{"fp8-rows",    "fp8-tensor",
                                                            "int8-rows",   "int8-zero-points",
                                                            "int4-packed", "int4-packed-zero-points",
                                                            "gptq",        "gptq-order",
                                                            "gptq8-v2",    "awq"};
  return models;
}
// Models that only the engine on libtorch runs.
inline const std::vector<std::string>& GemmaModels() {
  static const auto& models = *new std::vector<std::string>{"gemma2", "gemma3"};
  return models;
}

inline std::string DataDir(const std::string& name) { return "tests/data/engine/" + name; }

// The instruction sets that this machine supports.
inline std::vector<std::string> RunnableKernels() {
  std::vector<std::string> names;
  for (const char* name : {"avx512amx", "avx512bf16", "avx512", "avx2", "neonbf16", "neon", "portable"}) {
    if (FindKernels(name) != nullptr) names.push_back(name);
  }
  return names;
}

// A model, kernels and a dtype: all combinations, or a third of them under a sanitizer.
using EngineCase = std::tuple<std::string, std::string, std::string>;
inline std::vector<EngineCase> EngineCases() {
  const std::vector<std::string> kernels = RunnableKernels(), dtypes = {"float32", "bfloat16", "int8"};
  const size_t every = SomeOf(10) < 10 ? 3 : 1;  // a third has each model on each of the kernels
  std::vector<EngineCase> cases;
  for (size_t m = 0; m < RandomModels().size(); ++m) {
    for (size_t k = 0; k < kernels.size(); ++k) {
      for (size_t d = 0; d < dtypes.size(); ++d) {
        if ((m + k + d) % every == 0) cases.emplace_back(RandomModels()[m], kernels[k], dtypes[d]);
      }
    }
  }
  return cases;
}
inline std::string NameOf(const EngineCase& engine_case) {
  const auto& [model, kernels, dtype] = engine_case;
  return absl::StrReplaceAll(absl::StrCat(model, "_", kernels, "_", dtype), {{"-", "_"}});
}

// Defaults for the random models: float32, one thread, a pool for a few sequences.
inline RunnerOptions Options(const std::string& model) {
  RunnerOptions options;
  options.model_dir = DataDir(model);
  options.dtype = "float32";
  options.threads = 1;
  options.kv_blocks = 64;
  options.max_batch_rows = 128;
  return options;
}

inline std::unique_ptr<Runner> LoadOrDie(const RunnerOptions& options) {
  absl::StatusOr<std::unique_ptr<Runner>> runner = Runner::Load(options);
  EXPECT_TRUE(runner.ok()) << runner.status();
  return runner.ok() ? *std::move(runner) : nullptr;
}

// Pseudo-random tokens in [0, vocab), determined by the seed.
inline std::vector<TokenId> SomeTokens(int count, int vocab, uint32_t seed = 1) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) {
    seed = seed * 1664525 + 1013904223;
    tokens.push_back(static_cast<TokenId>((seed >> 8) % static_cast<uint32_t>(vocab)));
  }
  return tokens;
}

inline std::vector<float> RowOf(const LogitsView& logits, int row) {
  const absl::Span<const float> values = logits.row(row);
  return {values.begin(), values.end()};
}

// Appends tokens[position ..] in chunks of `chunk` rows and returns all their logits.
inline Logits Append(Runner& runner, absl::Span<const TokenId> tokens, int position,
                     absl::Span<const BlockId> blocks, int chunk) {
  Logits logits;
  for (int begin = 0; begin < static_cast<int>(tokens.size()); begin += chunk) {
    const absl::Span<const TokenId> part =
        tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(chunk));
    const SequenceRows rows = {part, position + begin, blocks, static_cast<int>(part.size())};
    absl::StatusOr<LogitsView> view = runner.Forward({&rows, 1});
    EXPECT_TRUE(view.ok()) << view.status();
    if (!view.ok()) return logits;
    EXPECT_EQ(view->rows, static_cast<int>(part.size()));
    for (int r = 0; r < view->rows; ++r) logits.push_back(RowOf(*view, r));
  }
  return logits;
}

// Blocks first, first + 1, ..., enough for `positions`.
inline std::vector<BlockId> BlocksFor(const Runner& runner, int positions, BlockId first = 0) {
  std::vector<BlockId> blocks;
  for (int p = 0; p < positions; p += runner.block_size())
    blocks.push_back(first + static_cast<BlockId>(blocks.size()));
  return blocks;
}

inline Logits AllLogits(Runner& runner, absl::Span<const TokenId> tokens, int chunk = 128) {
  return Append(runner, tokens, 0, BlocksFor(runner, static_cast<int>(tokens.size())), chunk);
}

inline int Best(absl::Span<const float> row) {
  int best = 0;
  for (int i = 1; i < static_cast<int>(row.size()); ++i) {
    if (row[static_cast<size_t>(i)] > row[static_cast<size_t>(best)]) best = i;
  }
  return best;
}

}  // namespace outrider::testing
