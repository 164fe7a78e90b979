// The border between libtorch, which throws, and the engine, which does not.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/engine/torch/step_runner.h"

namespace outrider::libtorch {

// Calls `work` in the runner's order, without gradients, with the exceptions of libtorch and of its libraries
// as errors, on one line: RESOURCE_EXHAUSTED if there is not enough memory, else INTERNAL. `what` says what
// was tried.
absl::Status Try(StepRunner& runner, absl::string_view what, absl::FunctionRef<absl::Status()> work);

}  // namespace outrider::libtorch
