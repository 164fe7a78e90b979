// What a device is tested with: a small model of made-up weights, and the checks that need many passes.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/backend.h"
#include "common/engine/decoder/decoder_spec.h"
#include "common/engine/decoder/tensor_source.h"
#include "common/engine/model.h"
#include "common/engine/runner_options.h"
#include "common/engine/stage_output.h"
#include "common/engine/thread_pool.h"
#include "common/kv/block_id.h"

namespace outrider {

// Room in the pool that all checks do with.
inline constexpr int kSelfTestTokens = 2048;

// Tensors of the shapes that are asked for: norms of numbers near one, and matrices such that products with
// them keep the size of their input.
class MadeUpWeights final : public TensorSource {
 public:
  absl::StatusOr<TensorView> Get(absl::string_view name, absl::Span<const int64_t> shape) const override;

 private:
  // In [-1, 1), from a linear congruential generator: all that matters is that the numbers differ.
  float Next() const;

  mutable uint32_t state_ = 1;
  mutable std::map<std::string, std::vector<float>> tensors_;
};

// Two layers with one of a model's groups of heads, in sizes that every backend supports. If layers of the
// model slide, one of the two does. Not thread-safe.
class SelfTestModel {
 public:
  using Observe = std::function<void(const StageOutput& output)>;

  // With room for `tokens` in its pool.
  SelfTestModel(const DecoderSpec& spec, const RunnerOptions& options, int vocab, int tokens);

  // Errors are those of Backend::Load. `observe` may be null.
  absl::StatusOr<std::unique_ptr<Model>> Load(const Backend& backend, ThreadPool& threads,
                                              Observe observe = nullptr) const;
  // The same model in float32 on the CPU, by this engine.
  absl::StatusOr<std::unique_ptr<Model>> LoadExact(const std::string& engine, ThreadPool& threads,
                                                   Observe observe = nullptr) const;

  const DecoderSpec& spec() const { return spec_; }
  const RunnerOptions& options() const { return options_; }
  // Blocks that hold `tokens`: [first, first + BlocksFor(tokens)), in descending order, so that their ids
  // count.
  std::vector<BlockId> Blocks(int first, int tokens) const;
  int BlocksFor(int tokens) const { return (tokens + options_.block_size - 1) / options_.block_size; }

 private:
  DecoderSpec spec_;
  RunnerOptions options_;  // of the tested engine
  MadeUpWeights weights_;
};

// What rounding to the dtype explains in this model, as a share of the size of what is compared, as the root
// mean square: several times what a correct engine shows.
double SelfTestTolerance(const std::string& dtype);

// Computes one sequence in several ways: in one pass, in chunks, token by token, beside another sequence, and
// going on in a copy of a block; and, where the model takes trees, its end as a path of a tree. All logits,
// keys and values must have the same bits, or agree up to rounding where Model::row_invariant, of the tree
// Model::tree_row_invariant, is false. Returns what was found, in words; FAILED_PRECONDITION, naming the way
// and the position, where something differs; else the errors of the model.
absl::StatusOr<std::string> CheckRows(Model& model, const SelfTestModel& small);

// Gives the model proposals and verdicts as tasks, under several sampling controls and both rules that
// devices know, all in one step, and each step twice: on a GPU the second one is a captured one. The host
// decides the same from the model's own logits. Returns what was found, in words, also where the model has no
// such tasks; FAILED_PRECONDITION, naming the decision, where one differs; else the errors of the model.
absl::StatusOr<std::string> CheckDecisions(Model& model, const SelfTestModel& small);

}  // namespace outrider
