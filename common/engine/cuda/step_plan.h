// From a batch to what the device is given of it: plain lists, made on the host, without CUDA.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/engine/batch.h"
#include "common/engine/cuda/attention_plan.h"
#include "common/engine/cuda/row_place.h"
#include "common/engine/device_task.h"

namespace outrider::cuda {

// One forward pass.
struct PassPlan {
  std::vector<RowPlace> places;              // [rows]
  std::vector<AttentionSequence> sequences;  // refer to the batch's block tables
};

// A step: a forward pass over the batch, the tasks of its sequences, and where these draft, a pass for each
// further token.
struct StepPlan {
  std::vector<int32_t> tokens;  // [rows] of the first pass
  PassPlan first;
  std::vector<int32_t> logit_rows;  // rows of the first pass; those of tasks, in their order, then the host's
  int host_rows = 0;                // how many of them are the host's
  std::vector<DeviceTask*> tasks;   // all of one kind
  // One row for each task, whose token is the one drafted before. Tasks that want fewer tokens have a row in
  // the spare block.
  std::vector<PassPlan> draft_passes;
};

// `spare` is a table of one block that no sequence has, and outlives the plan as the batch does. The batch is
// valid as Runner::Forward defines it, and its tasks are all proposals or all verifications.
StepPlan PlanStep(absl::Span<const SequenceRows> batch, int block_size, absl::Span<const BlockId> spare);

// What a captured graph fixes: it serves every step of the same shape.
struct StepShape {
  int rows = 0;           // of the first pass
  int logit_rows = 0;     // of it
  int tasks = 0;          // that have room
  bool proposes = false;  // or verifies
  int draft_passes = 0;
  int sequences = 0;  // of the first pass, that have room
  int length = 0;     // of the longest sequence that has room
  friend auto operator<=>(const StepShape&, const StepShape&) = default;
};

// Steps with more rows than that are not captured: they are prompts, of any number of rows, and compute for
// long.
inline constexpr int kMaxCapturedRows = 64;

// The smallest shape that has room for the step. Numbers are rounded up, to tiles of rows and to powers of
// two, so that few graphs serve all steps.
StepShape ShapeOf(const StepPlan& plan);

}  // namespace outrider::cuda
