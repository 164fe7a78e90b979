// Tests whether a device computes the same as the CPU.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/engine/backend.h"
#include "common/engine/decoder/decoder_config.h"
#include "common/engine/decoder/tensor_source.h"
#include "common/engine/model.h"
#include "common/engine/runner_options.h"
#include "common/engine/thread_pool.h"
#include "common/kv/block_id.h"

namespace outrider {

// Loads a small model with made-up weights on the backend and compares its logits with those of the CPU
// kernels in float32. The model has the heads of `spec` and, if `spec` has sliding layers, one of them.
// FAILED_PRECONDITION, with a hint at --engine torch, if the backend has no code for the device
// (UNIMPLEMENTED), or if the difference is more than rounding to the backend's dtype explains; else the
// errors of Backend::Load and Model::Forward. Takes a fraction of a second.
absl::Status SelfTest(const Backend& backend, const DecoderConfig& spec, const RunnerOptions& options,
                      ThreadPool& threads);

// Runs all checks of such a small model, which takes a second or two:
//
//   stages     every stage of a pass against the CPU's kernels; the first wrong one is named
//   logits     logits without an observer, as a served model runs: on a GPU with captured steps
//   rows       tokens alone, together, in chunks, beside others, in copied blocks and in a tree have results
//              with the same bits where the model claims that, else up to rounding
//   decisions  proposals and verdicts of the device tasks that the model can run, against common/spec
//
// A model that the native CPU kernels do not support is compared with libtorch on the CPU. Calls `report`
// with a line for what is tested and one for each check, and stops at the first failure. Returns whether all
// checks passed. Errors are those of Backend::Load, if the small model cannot be loaded.
absl::StatusOr<bool> SelfTestInFull(const Backend& backend, const DecoderConfig& spec,
                                    const RunnerOptions& options, ThreadPool& threads,
                                    absl::FunctionRef<void(absl::string_view line)> report);

// The rest of this header is the small model that is tested, and the checks that need many passes.

// A pool with room for this many tokens suffices for all checks.
inline constexpr int kSelfTestTokens = 2048;

// Makes tensors of any requested shape: norms with values around one, and matrices whose products keep the
// magnitude of their input.
class MadeUpWeights final : public TensorSource {
 public:
  absl::StatusOr<TensorView> Get(absl::string_view name, absl::Span<const int64_t> shape) const override;

 private:
  // In [-1, 1), from a linear congruential generator: all that matters is that the numbers differ.
  float Next() const;

  mutable uint32_t state_ = 1;
  mutable std::map<std::string, std::vector<float>> tensors_;
};

// A model with two layers and one of the given model's groups of heads, in sizes that every backend
// supports. If the given model has sliding layers, one of the two is a sliding layer. Not thread-safe.
class SelfTestModel {
 public:
  using Observe = std::function<void(const StageOutput& output)>;

  // The pool has room for `tokens`.
  SelfTestModel(const DecoderConfig& spec, const RunnerOptions& options, int vocab, int tokens);

  // Errors are those of Backend::Load. `observe` may be null.
  absl::StatusOr<std::unique_ptr<Model>> Load(const Backend& backend, ThreadPool& threads,
                                              Observe observe = nullptr) const;
  // Loads the same model in float32 on the CPU with this engine.
  absl::StatusOr<std::unique_ptr<Model>> LoadExact(const std::string& engine, ThreadPool& threads,
                                                   Observe observe = nullptr) const;

  const DecoderConfig& spec() const { return spec_; }
  const RunnerOptions& options() const { return options_; }
  // Blocks that hold `tokens`: [first, first + BlocksFor(tokens)), in descending order, so that code that
  // ignores block ids fails.
  std::vector<BlockId> Blocks(int first, int tokens) const;
  int BlocksFor(int tokens) const { return (tokens + options_.block_size - 1) / options_.block_size; }

 private:
  DecoderConfig spec_;
  RunnerOptions options_;  // of the tested engine
  MadeUpWeights weights_;
};

// The largest relative difference (root mean square) that rounding to the dtype explains in this model:
// several times the difference of a correct engine.
double SelfTestTolerance(const std::string& dtype);

// Compares the logits, keys and values of one sequence in several ways. Returns the findings, in words;
// FAILED_PRECONDITION, naming the way and the position, if they differ more than Model::row_invariant (for
// the tree, Model::tree_row_invariant) allows; else the errors of the model.
absl::StatusOr<std::string> CheckRows(Model& model, const SelfTestModel& small);

// Compares proposals and verdicts under several sampling controls, all in one step. Runs each step twice: on
// a GPU, the second run is captured. Returns the findings, in words, even if the model has no such tasks;
// FAILED_PRECONDITION, naming the decision, if one differs; else the errors of the model.
absl::StatusOr<std::string> CheckDecisions(Model& model, const SelfTestModel& small);

}  // namespace outrider
