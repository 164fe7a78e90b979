// The kernels of matmul_trial.h. Pointers are to device memory; each function enqueues one kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "common/engine/cuda/rows.h"

namespace outrider::cuda {

// Fills `to` [count] with finite numbers of either sign and of many magnitudes.
cudaError_t LaunchFill(Operand operand, void* to, size_t count, uint64_t seed, cudaStream_t stream);

// Sets *differs to 1 if the bits of a and b, [count] each, are not the same; else leaves it.
cudaError_t LaunchCompare(const float* a, const float* b, size_t count, int* differs, cudaStream_t stream);

}  // namespace outrider::cuda
