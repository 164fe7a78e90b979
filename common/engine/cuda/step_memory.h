// What a step tells the device and what it hears from it, in one piece of memory each way.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/engine/cuda/decide_types.h"
#include "common/engine/cuda/row_place.h"
#include "common/engine/cuda/step_plan.h"

namespace outrider::cuda {

// The arrays of a step's input, on the host or on the device. Null where its shape has none.
struct StepInputs {
  int32_t* tokens;            // [rows]
  RowPlace* places;           // [rows]
  int32_t* logit_rows;        // [logit_rows]
  ShapeParams* shape_params;  // [logit_rows]; those of the host's rows are not active
  RowPlace* draft_places;     // [draft_passes][tasks]
  ProposeInput* propose;      // [tasks]
  VerifyInput* verify;        // [tasks]
  DraftedToken* drafted;      // [logit_rows]
  int32_t* q_ids;             // [logit_rows * kMaxTopN]
  float* q_weights;           // the same
};

// Of its output.
struct StepOutputs {
  ProposeOutput* proposals;  // [draft_passes + 1][tasks]
  int32_t* q_ids;            // [draft_passes + 1][tasks][kMaxTopN]
  float* q_weights;          // the same
  VerifyOutput* verdicts;    // [tasks]
};

// Lays out the arrays of a shape from `memory` on (null: to learn the size); returns the bytes.
size_t LayOut(const StepShape& shape, char* memory, StepInputs& inputs);
size_t LayOut(const StepShape& shape, char* memory, StepOutputs& outputs);

// Fills in the host's arrays. Everything that the shape has room for and the plan does not need is made idle.
void WriteInputs(const StepPlan& plan, const StepShape& shape, int32_t spare_block, const StepInputs& inputs);

// Puts what the device said into the tasks.
void ReadOutputs(const StepPlan& plan, const StepShape& shape, const StepOutputs& outputs);

}  // namespace outrider::cuda
