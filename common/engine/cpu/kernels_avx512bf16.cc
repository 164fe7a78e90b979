// The kernels for CPUs with AVX-512 and its bfloat16 dot products.
#include "common/engine/cpu/kernels_avx512bf16.inc"
#include "common/engine/cpu/kernels_linear.inc"

const outrider::Kernels outrider::kernels_internal::kAvx512BFloat16 = outrider::KernelsNamed("avx512bf16");
