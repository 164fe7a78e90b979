// The kernels for ARM64. All ARM64 CPUs have fused multiply-adds on four lanes. kernels_portable.cc compiles
// there too, but multiplies and adds separately, and reads the weights again for every row.
#include "common/engine/cpu/kernels_neon.inc"

namespace outrider {
namespace {

constexpr int kQueriesPerTile = 4;

using Operand = float;  // for bfloat16 weights

}  // namespace
}  // namespace outrider

#include "common/engine/cpu/kernels_linear.inc"

const outrider::Kernels outrider::kernels_internal::kNeon = outrider::KernelsNamed("neon");
