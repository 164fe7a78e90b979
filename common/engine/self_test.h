// Whether a device computes what the CPU does.
#pragma once

#include "absl/status/status.h"
#include "common/engine/backend.h"
#include "common/engine/decoder/decoder_spec.h"
#include "common/engine/runner_options.h"
#include "common/engine/thread_pool.h"

namespace outrider {

// Loads a small model of made-up weights on the backend, with the heads of `spec` and, if
// `spec` has any, a layer that slides, and compares its logits with those of the CPU's kernels in float32.
// FAILED_PRECONDITION, with a hint at --engine torch, if the backend has no code for the device
// (UNIMPLEMENTED), or if the difference is more than rounding to options.dtype explains; else the errors of
// Backend::Load and Model::Forward. Takes a fraction of a second.
absl::Status SelfTest(const Backend& backend, const DecoderSpec& spec, const RunnerOptions& options,
                      ThreadPool& threads);

}  // namespace outrider
