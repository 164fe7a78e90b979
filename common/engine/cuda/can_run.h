// Which tasks a GPU carries out itself.
#pragma once

#include "common/engine/device_task.h"

namespace outrider::cuda {

// Whether the kernels decide what this task asks for, over a vocabulary of so many tokens. Of the sampling
// controls they know temperature, top_k, top_p and min_p. They judge chains of at most kMaxDraftTokens under
// the token rule at lenience 1 and under the coupled rule, each q a point mass, absent (coupled rule) or
// sparse with at most kMaxTopN entries, and report no log-probabilities; they draft as many tokens from
// distributions of that size. Pure, any thread.
bool CanRun(const DeviceTask& task, int vocab);

}  // namespace outrider::cuda
