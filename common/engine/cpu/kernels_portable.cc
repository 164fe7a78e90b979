// The kernels for any CPU: four lanes, with products and sums rounded separately (a fused multiply-add in
// software would be far too slow).
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "common/engine/cpu/kernels.h"

namespace outrider {
namespace {

constexpr int kLanes = 4;
constexpr int kPanelsPerTile = 1;
constexpr int kPanelsPerTileOneRow = 1;
constexpr int kRowsPerTile = 1;
constexpr int kQueriesPerTile = 2;

typedef float Vec __attribute__((vector_size(16)));
typedef int32_t IntVec __attribute__((vector_size(16)));

inline Vec Fma(Vec a, Vec b, Vec c) { return a * b + c; }

#if defined(__SSE2__)
constexpr bool kRoundsBlocks = true;
inline IntVec AddPairProduct(IntVec sum, IntVec a, IntVec b) {
  return sum +
         reinterpret_cast<IntVec>(_mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
}
#else
constexpr bool kRoundsBlocks = false;
#endif

using Operand = float;  // for bfloat16 weights

}  // namespace
}  // namespace outrider

#include "common/engine/cpu/kernels_linear.inc"

const outrider::Kernels outrider::kernels_internal::kPortable = outrider::KernelsNamed("portable");
