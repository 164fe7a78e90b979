// The kernels for ARM64 with bfloat16 dot products (FEAT_BF16), each of which adds two products to a chain.
//
// BFDOT adds the two products before it adds them to the sum, rounds each of these steps to odd, and takes
// subnormal numbers for zero. AVX-512's rounds otherwise, so the bits of the two differ. Either is a function
// of the sum and of the two pairs alone, which is all that batch invariance asks for.
#include "common/engine/cpu/kernels_neon.inc"

namespace outrider {
namespace {

constexpr int kQueriesPerTile = 5;

// The operand type for bfloat16 weights, and one step of a chain: two adjacent k.
using Operand = uint16_t;
inline Vec AccumulatePair(Vec sum, const Operand* x, IntVec weights) {
  int32_t pair;
  __builtin_memcpy(&pair, x, sizeof(pair));
  return vbfdotq_f32(sum, reinterpret_cast<bfloat16x8_t>(pair - IntVec{}),
                     reinterpret_cast<bfloat16x8_t>(weights));
}

}  // namespace
}  // namespace outrider

#include "common/engine/cpu/kernels_linear.inc"

const outrider::Kernels outrider::kernels_internal::kNeonBFloat16 = outrider::KernelsNamed("neonbf16");
