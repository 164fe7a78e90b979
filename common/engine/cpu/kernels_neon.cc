// The kernels for ARM64, all of which has fused multiply-adds on four lanes. kernels_portable.cc compiles
// there too, with a multiplication and an addition for each, and reads the weights again for every row.
#include <arm_neon.h>

#include "common/engine/cpu/kernels.h"

namespace outrider {
namespace {

constexpr int kLanes = 4;
constexpr int kPanelsPerTile = 1;
constexpr int kPanelsPerTileOneRow = 2;
constexpr int kRowsPerTile = 3;
constexpr int kQueriesPerTile = 4;

typedef float Vec __attribute__((vector_size(16)));
typedef int32_t IntVec __attribute__((vector_size(16)));

inline Vec Fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
inline Vec LoadFloat16(const char* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p))));
}

using Operand = float;  // for bfloat16 weights

}  // namespace
}  // namespace outrider

#include "common/engine/cpu/kernels_linear.inc"

const outrider::Kernels outrider::kernels_internal::kNeon = outrider::KernelsNamed("neon");
