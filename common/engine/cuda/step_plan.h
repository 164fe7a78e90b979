// Plans a step: turns a batch into plain lists for the device, and chooses the sizes of its attention
// launches: those that a model has memory for, and those that a CUDA graph fixes when it is captured. Runs on
// the host, without CUDA.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/engine/batch.h"
#include "common/engine/cuda/attention_plan.h"
#include "common/engine/cuda/layer_rows.h"
#include "common/engine/decoder/decoder_config.h"
#include "common/engine/runner_options.h"
#include "common/engine/sequence_params.h"

namespace outrider::cuda {

// One forward pass.
struct PassPlan {
  std::vector<RowPlace> places;              // [rows]
  std::vector<AttentionSequence> sequences;  // point to the batch's block tables
};

// A step: a forward pass over the batch, the tasks of its sequences and, if these propose, one further pass
// per drafted token after the first.
struct StepPlan {
  std::vector<int32_t> tokens;  // [rows] of the first pass
  PassPlan first;
  // The rows of the first pass that need logits: first those of tasks, in order, then the host's. Unused rows
  // may lie between them, so that draft passes do not overwrite the host's logits.
  std::vector<int32_t> logit_rows;  // fewer than kMaxIdleRows more than are wanted
  int host_rows = 0;                // how many of logit_rows are the host's
  std::vector<DeviceTask*> tasks;   // all of the same kind
  // Each has one row per task, for the token drafted in the previous pass. A task that needs fewer tokens has
  // a row in the spare block.
  std::vector<PassPlan> draft_passes;
};

// `spare` is a block table with one block that no sequence uses; like the batch it must outlive the plan. The
// batch is valid as Runner::Forward defines it, and its tasks are all proposals or all verifications.
StepPlan PlanStep(absl::Span<const SequenceRows> batch, int block_size, absl::Span<const BlockId> spare);

// The sizes of a step's arrays on the device.
struct StepShape {
  int rows = 0;           // of the first pass
  int logit_rows = 0;     // of the first pass
  int tasks = 0;          // capacity
  bool proposes = false;  // tasks are proposals; else verifications
  int draft_passes = 0;
  friend auto operator<=>(const StepShape&, const StepShape&) = default;
};

// Steps with more rows are not captured in graphs: they are mostly prompts, which have any number of rows,
// and take long to compute anyway.
inline constexpr int kMaxCapturedRows = 256;

// The number of rows of a shape for `rows` rows, rounded up so that few graphs serve all steps: to 16, 32 or
// a multiple of 64 if the step can be captured, else to a multiple of kRowTile.
int RowCapacity(int rows);
// The same for tasks and for sequences. Up to 16, rounds up to a power of two; above that, rounds as for rows
// if the step can be captured, else not at all. Never above RowCapacity(tasks).
int TaskCapacity(int tasks);

// A shape has fewer than this many rows of logits beyond the wanted ones, for idle tasks and for rounding.
inline constexpr int kMaxIdleRows = 128;

// The smallest shape that holds the step.
StepShape ShapeOf(const StepPlan& plan);

// A launch has memory for this many rows of sequences of the maximum length. For a 3B model with 131,072
// positions, that is 200 MB.
inline constexpr int kLongRows = 64;

// For a model whose cache has the layout of DecoderLayers.
AttentionShape AttentionShapeOf(const DecoderConfig& spec, int block_size);

// For steps of at most `max_rows` rows and sequences of at most `max_positions`. Steps that need more than
// the capacity are cut into several launches (CutIntoPasses).
AttentionSize AttentionCapacity(const AttentionShape& shape, int max_rows, int max_positions);

// The maximum number of blocks of a KV pool, besides the spare block. The names of slots of tails must fit in
// ints (AttentionShape::block_stride). The limit is 275 GB with heads of 64.
int MostBlocks(const AttentionShape& shape);

// A graph serves every step that has the same GraphShape.
struct GraphShape {
  StepShape step;
  AttentionSize first;  // of the attention launches of the first pass
  AttentionSize draft;  // and of those of each further pass
  friend auto operator<=>(const GraphShape&, const GraphShape&) = default;
};

// The graph that serves a step of shape `step`. Its attention launches as many thread blocks as this step
// needs, rounded up by less than half, rather than as many as the longest sequences could need. Returns
// nothing if the step has to be launched without a graph: it has more than kMaxCapturedRows rows or tasks, or
// needs more than `capacity`.
std::optional<GraphShape> GraphOf(const StepPlan& plan, const StepShape& step,
                                  const AttentionShape& attention, const AttentionSize& capacity);

// A model runs the made-up steps below while it is loaded, so that no request pays for a first step, which
// loads kernels and captures graphs.

// Sequences of equal size, and the work on them.
struct WarmUpStep {
  int sequences = 1;
  int rows = 1;    // of each
  int length = 1;  // of each, its rows included
  enum class Work { kLogits, kVerify, kPropose } work = Work::kLogits;
  int draft_tokens = 0;  // of a proposal; a verification's draft is all rows but the first
};

// The limits of a model.
struct WarmUpLimits {
  int rows = 0;       // of a step
  int positions = 0;  // of a sequence
};

// One step of each kind of launch: with tasks of either kind and without, of many rows, and with attention
// whose results are merged. Smaller if the limits require it.
std::vector<WarmUpStep> DirectSteps(const WarmUpLimits& limits);

// The steps of one stream and of eight, with K from 0 to 8 and up to 1024 positions, as far as the limits
// allow: verifications unless the model is a draft, proposals unless it is a target. The last of them has the
// most kernels.
std::vector<WarmUpStep> CommonSteps(const WarmUpLimits& limits, ModelRole role);

// The batch of a made-up step. Its cached tokens are made up too: all of them are in block 0.
class MadeUpBatch {
 public:
  MadeUpBatch(const WarmUpStep& step, int block_size);
  MadeUpBatch(const MadeUpBatch&) = delete;
  MadeUpBatch& operator=(const MadeUpBatch&) = delete;

  absl::Span<const SequenceRows> rows() const { return rows_; }

 private:
  SequenceParams params_;
  std::vector<TokenId> tokens_;
  std::vector<BlockId> blocks_;
  std::vector<ProposalNode> draft_;
  std::vector<DeviceTask> tasks_;
  std::vector<SequenceRows> rows_;
};

}  // namespace outrider::cuda
