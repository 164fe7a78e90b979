#include "common/engine/cpu/kernels.h"

#include <cstring>
#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace outrider {

const Kernels* Avx512BFloat16Kernels() {
#if defined(__x86_64__)
  if (Avx512Kernels() != nullptr && __builtin_cpu_supports("avx512bf16"))
    return &kernels_internal::kAvx512BFloat16;
#endif
  return nullptr;
}

const Kernels* Avx512Kernels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("fma")) {
    return &kernels_internal::kAvx512;
  }
#endif
  return nullptr;
}

const Kernels* Avx2Kernels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &kernels_internal::kAvx2;
#endif
  return nullptr;
}

const Kernels* NeonBFloat16Kernels() {
#if defined(__aarch64__)
  if ((getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0) return &kernels_internal::kNeonBFloat16;
#endif
  return nullptr;
}

const Kernels* NeonKernels() {
#if defined(__aarch64__)
  return &kernels_internal::kNeon;
#else
  return nullptr;
#endif
}

const Kernels* PortableKernels() { return &kernels_internal::kPortable; }

namespace {

constexpr const Kernels* (*kFastestFirst[])() = {&Avx512BFloat16Kernels, &Avx512Kernels, &Avx2Kernels,
                                                 &NeonBFloat16Kernels,   &NeonKernels,   &PortableKernels};

}  // namespace

const Kernels& BestKernels() {
  for (const auto kernels : kFastestFirst) {
    if (kernels() != nullptr) return *kernels();
  }
  return *PortableKernels();
}

const Kernels* FindKernels(const char* name) {
  for (const auto kernels : kFastestFirst) {
    if (kernels() != nullptr && std::strcmp(kernels()->name, name) == 0) return kernels();
  }
  return nullptr;
}

bool CpuPrefersBFloat16() { return BestKernels().rounds_operands; }

}  // namespace outrider
