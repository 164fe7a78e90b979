// Shows what a forward pass computes, for tools that compare engines (stage_output.h).
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/engine/cuda/layer_kernels.h"
#include "common/engine/stage_output.h"

namespace outrider::cuda {

// Waits for the stream after each stage and copies its rows to the host as float32. An error of a kernel thus
// names the stage in which it occurred. Does nothing without an observer. An observed step cannot be
// captured.
class StageObserver {
 public:
  // `observe` is RunnerOptions::observe and may be null.
  StageObserver(std::function<void(const StageOutput& output)> observe, cudaStream_t stream)
      : observe_(std::move(observe)), stream_(stream) {}

  // Describes the rows.
  struct Stage {
    absl::string_view name;
    int layer;
    int rows;
    int columns;
  };

  // The residual stream [rows, columns] and a product that is yet to be added to it (none if y is null).
  absl::Status Residual(const Stage& stage, const float* residual, const Product& product) const;
  // Rows in bfloat16, or in fp8 with scales.
  absl::Status Operand(const Stage& stage, const OperandRows& rows) const;

 private:
  const std::function<void(const StageOutput& output)> observe_;
  const cudaStream_t stream_;
};

}  // namespace outrider::cuda
