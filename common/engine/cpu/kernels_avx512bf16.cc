// The kernels for CPUs with AVX-512 and its bfloat16 dot products, which double the rate of matrix products:
// each step of a chain adds two of them.
#include "common/engine/cpu/kernels_avx512.inc"

namespace outrider {
namespace {

constexpr int kQueriesPerTile = 5;

// The operand type for bfloat16 weights, and one step of a chain: two adjacent k.
using Operand = uint16_t;
inline Vec AccumulatePair(Vec sum, const Operand* x, IntVec weights) {
  int32_t pair;
  __builtin_memcpy(&pair, x, sizeof(pair));
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(pair - IntVec{}),
                          reinterpret_cast<__m512bh>(weights));
}

// Two adjacent k of int8 weights. (GCC 12 converts bytes one by one unless it is told the instructions, and
// takes the unmasked forms of these for uninitialised.)
inline IntVec WidenBytes(const char* from) {
  constexpr __mmask16 kAll = 0xffff;
  const auto floats = [from](int first) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + first));
    return _mm512_maskz_cvtepi32_ps(kAll, _mm512_maskz_cvtepi8_epi32(kAll, bytes));
  };
  return reinterpret_cast<IntVec>(_mm512_cvtne2ps_pbh(floats(kLanes), floats(0)));
}

}  // namespace
}  // namespace outrider

#include "common/engine/cpu/kernels_linear.inc"

const outrider::Kernels outrider::kernels_internal::kAvx512BFloat16 = outrider::KernelsNamed("avx512bf16");
