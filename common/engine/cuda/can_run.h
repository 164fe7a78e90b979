// Selects the tasks that a GPU carries out itself.
#pragma once

#include "common/engine/device_task.h"

namespace outrider::cuda {

// Whether the kernels support this task over a vocabulary of `vocab` tokens. They support the sampling
// controls temperature, top_k, top_p and min_p. They verify chains of at most kMaxDraftTokens under the
// coupled rule and under the token rule at lenience 1, without log-probabilities; each q is a point mass,
// absent (coupled rule) or sparse with at most kMaxTopN entries. They draft as many tokens from distributions
// of that size. Pure and thread-safe.
bool CanRun(const DeviceTask& task, int vocab);

}  // namespace outrider::cuda
