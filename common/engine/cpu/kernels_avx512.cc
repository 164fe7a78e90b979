// The kernels for CPUs with AVX-512.
#include "common/engine/cpu/kernels_avx512.inc"

namespace outrider {
namespace {

constexpr int kQueriesPerTile = 4;
constexpr bool kRoundsBlocks = false;

using Operand = float;  // for bfloat16 weights

}  // namespace
}  // namespace outrider

#include "common/engine/cpu/kernels_linear.inc"

const outrider::Kernels outrider::kernels_internal::kAvx512 = outrider::KernelsNamed("avx512");
