#include "common/engine/cpu/kernels.h"

#include <cstring>
#include <vector>
#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace outrider {
namespace {

#if defined(__x86_64__)
// A process must ask Linux for permission to use tile registers (Documentation/arch/x86/xstate.rst).
bool MayUseTiles() {
  constexpr long kAskForFeature = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
         syscall(SYS_arch_prctl, kAskForFeature, kTileData) == 0;
}
#endif

// The kernels that are compiled in and that this CPU can run, fastest first.
std::vector<const Kernels*> Runnable() {
  std::vector<const Kernels*> kernels;
#if defined(__x86_64__)
  const bool has_fma = __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (has_fma && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    if (__builtin_cpu_supports("avx512bf16")) {
      if (MayUseTiles()) kernels.push_back(&kernels_internal::kAvx512Amx);
      kernels.push_back(&kernels_internal::kAvx512BFloat16);
    }
    kernels.push_back(&kernels_internal::kAvx512);
  }
  if (has_fma && __builtin_cpu_supports("avx2")) kernels.push_back(&kernels_internal::kAvx2);
#elif defined(__aarch64__)
  if ((getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0) kernels.push_back(&kernels_internal::kNeonBFloat16);
  kernels.push_back(&kernels_internal::kNeon);
#endif
  kernels.push_back(&kernels_internal::kPortable);
  return kernels;
}

}  // namespace

const Kernels& BestKernels() { return *Runnable().front(); }

const Kernels* FindKernels(const char* name) {
  for (const Kernels* const kernels : Runnable()) {
    if (std::strcmp(kernels->name, name) == 0) return kernels;
  }
  return nullptr;
}

}  // namespace outrider
