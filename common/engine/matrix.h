// A weight matrix on a backend, for what is no decoder.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace outrider {

// Not thread-safe; may use the threads that its backend was given.
class Matrix {
 public:
  virtual ~Matrix() = default;

  // y = x W^T for W [n, k], k even: x is float32 [rows, k] and y float32 [rows, n]. An error means that the device
  // failed.
  virtual absl::Status Multiply(absl::Span<const float> x, absl::Span<float> y) = 0;
};

}  // namespace outrider
