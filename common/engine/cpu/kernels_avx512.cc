// The kernels for CPUs with AVX-512.
#include <immintrin.h>

#include "common/engine/cpu/kernels.h"

namespace outrider {
namespace {

constexpr int kLanes = 16;
constexpr int kPanelsPerTile = 2;
constexpr int kPanelsPerTileOneRow = 4;
constexpr int kRowsPerTile = 6;
constexpr int kQueriesPerTile = 4;

typedef float Vec __attribute__((vector_size(64)));
typedef int32_t IntVec __attribute__((vector_size(64)));

inline Vec Fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec LoadFloat16(const char* p) {
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// (GCC 12 by itself overwrites a constant, and copies it before.)
inline IntVec WidenLevels(IntVec words, int pair) {
  const auto shifted = reinterpret_cast<__m512i>(words >> (4 * pair));
  return reinterpret_cast<IntVec>(
      _mm512_ternarylogic_epi32(shifted, _mm512_set1_epi32(0x000f000f), _mm512_set1_epi32(0x43004300), 0xea));
}

using Operand = float;  // for bfloat16 weights

}  // namespace
}  // namespace outrider

#include "common/engine/cpu/kernels_linear.inc"

const outrider::Kernels outrider::kernels_internal::kAvx512 = outrider::KernelsNamed("avx512");
