// Plans a step: turns a batch into plain lists for the device. Runs on the host, without CUDA.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/engine/batch.h"
#include "common/engine/cuda/attention_plan.h"
#include "common/engine/cuda/rows.h"

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
  // Rows of the first pass: first those of tasks, in order, last the host's. Unused rows lie between them, so
  // that draft passes do not overwrite the host's.
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

// How many rows a shape has for `rows`, rounded up so that few graphs serve all steps: to 16, 32 or a
// multiple of 64 where they can be captured, else to tiles of a product.
int RowCapacity(int rows);
// The same for tasks and for sequences: to a power of two up to 16, above that as for rows. Not above the
// capacity for as many rows.
int TaskCapacity(int tasks);

// A shape has fewer than this many rows of logits beyond the wanted ones, for idle tasks and for rounding.
inline constexpr int kMaxIdleRows = 128;

// The smallest shape that holds the step.
StepShape ShapeOf(const StepPlan& plan);

}  // namespace outrider::cuda
