// The kernels for CPUs with AVX2.
#include <immintrin.h>

#include "common/engine/cpu/kernels.h"

namespace outrider {
namespace {

constexpr int kLanes = 8;
constexpr int kPanelsPerTile = 1;
constexpr int kPanelsPerTileOneRow = 1;
constexpr int kRowsPerTile = 3;
constexpr int kQueriesPerTile = 2;
constexpr bool kRoundsBlocks = true;

typedef float Vec __attribute__((vector_size(32)));
typedef int32_t IntVec __attribute__((vector_size(32)));

inline Vec Fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec LoadFloat16(const char* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

inline IntVec LoadLevels(const char* from) {
  return reinterpret_cast<IntVec>(
      _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
inline IntVec AddPairProduct(IntVec sum, IntVec a, IntVec b) {
  sum +=
      reinterpret_cast<IntVec>(_mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
  // Otherwise GCC 12 first computes several products of a sum, and has too few registers for them.
  __asm__("" : "+x"(sum));
  return sum;
}

using Operand = float;  // for bfloat16 weights

}  // namespace
}  // namespace outrider

#include "common/engine/cpu/kernels_linear.inc"

const outrider::Kernels outrider::kernels_internal::kAvx2 = outrider::KernelsNamed("avx2");
