// Tests whether a device computes the same as the CPU.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/engine/backend.h"
#include "common/engine/decoder/decoder_spec.h"
#include "common/engine/runner_options.h"
#include "common/engine/thread_pool.h"

namespace outrider {

// Loads a small model of made-up weights on the backend, with the heads of `spec` and, if `spec` has any, a
// sliding layer, and compares its logits with those of the CPU's kernels in float32. FAILED_PRECONDITION,
// with a hint at --engine torch, if the backend has no code for the device (UNIMPLEMENTED), or if the
// difference is more than rounding to its dtype explains; else the errors of Backend::Load and
// Model::Forward. Takes a fraction of a second.
absl::Status SelfTest(const Backend& backend, const DecoderSpec& spec, const RunnerOptions& options,
                      ThreadPool& threads);

// Tests the same model in all its uses, check by check, in a second or two:
//
//   stages     every stage of a pass against the CPU's kernels; the first wrong one is named
//   logits     the same without an observer, as it is served: with a GPU's captured steps
//   rows       tokens alone, together, in chunks, beside others, in copied blocks and in a tree have the same
//              bits where the model claims so, else up to rounding
//   decisions  proposals and verdicts of the device tasks that the model can run, against common/spec
//
// A model that our CPU kernels do not support is compared with libtorch on the CPU. Calls `report` with a
// line for what is tested and one for each check, and stops at the first failure. Returns whether all checks
// passed. Errors are those of Backend::Load, if the small model cannot be loaded.
absl::StatusOr<bool> SelfTestInFull(const Backend& backend, const DecoderSpec& spec,
                                    const RunnerOptions& options, ThreadPool& threads,
                                    absl::FunctionRef<void(absl::string_view line)> report);

}  // namespace outrider
