// The kernels for ARM64 with bfloat16 dot products (FEAT_BF16), each of which adds two products to a chain.
//
// BFDOT adds the two products, then adds the result to the sum. It rounds each of these steps to odd and
// treats subnormal numbers as zero. AVX-512's instruction rounds differently, so the bits of the two differ.
// Each result depends only on the sum and the two pairs, which is all that batch invariance requires.
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
