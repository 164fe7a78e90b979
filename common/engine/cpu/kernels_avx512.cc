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

using Operand = float;  // for bfloat16 weights

}  // namespace
}  // namespace outrider

#include "common/engine/cpu/kernels_linear.inc"

const outrider::Kernels outrider::kernels_internal::kAvx512 = outrider::KernelsNamed("avx512");
