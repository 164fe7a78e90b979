// The input and output of a step on the device, each in one contiguous buffer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/engine/cuda/decide_types.h"
#include "common/engine/cuda/layer_rows.h"
#include "common/engine/cuda/step_plan.h"

namespace outrider::cuda {

// The arrays of a step's input, on the host or on the device. Arrays that the shape does not need are null.
struct StepInputs {
  int32_t* tokens;            // [rows]
  RowPlace* places;           // [rows]
  int32_t* logit_rows;        // [logit_rows]
  ShapeParams* shape_params;  // [logit_rows]; inactive for the host's rows
  RowPlace* draft_places;     // [draft_passes][tasks]
  ProposeInput* propose;      // [tasks]
  VerifyInput* verify;        // [tasks]
  DraftedToken* drafted;      // [logit_rows]
  int32_t* q_ids;             // [logit_rows * kMaxTopN]
  float* q_weights;           // the same
};

// The arrays of a step's output.
struct StepOutputs {
  ProposeOutput* proposals;  // [draft_passes + 1][tasks]
  int32_t* q_ids;            // [draft_passes + 1][tasks][kMaxTopN]
  float* q_weights;          // the same
  VerifyOutput* verdicts;    // [tasks]
};

// Sets the pointers of a shape's arrays in `memory` (null: only computes the size). Returns the size in
// bytes.
size_t LayOut(const StepShape& shape, char* memory, StepInputs& inputs);
size_t LayOut(const StepShape& shape, char* memory, StepOutputs& outputs);

// Fills in the arrays on the host. Entries that the shape has but the plan does not need become idle.
void WriteInputs(const StepPlan& plan, const StepShape& shape, int32_t spare_block, const StepInputs& inputs);

// Stores the device's results in the tasks.
void ReadOutputs(const StepPlan& plan, const StepShape& shape, const StepOutputs& outputs);

}  // namespace outrider::cuda
