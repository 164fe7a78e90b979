#include "common/engine/cpu/kernels.h"

#include <cstring>
#include <initializer_list>

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

const Kernels* PortableKernels() { return &kernels_internal::kPortable; }

const Kernels& BestKernels() {
  if (const Kernels* kernels = Avx512BFloat16Kernels()) return *kernels;
  if (const Kernels* kernels = Avx512Kernels()) return *kernels;
  if (const Kernels* kernels = Avx2Kernels()) return *kernels;
  return *PortableKernels();
}

const Kernels* FindKernels(const char* name) {
  for (const Kernels* kernels :
       {Avx512BFloat16Kernels(), Avx512Kernels(), Avx2Kernels(), PortableKernels()}) {
    if (kernels != nullptr && std::strcmp(kernels->name, name) == 0) return kernels;
  }
  return nullptr;
}

bool CpuPrefersBFloat16() { return Avx512BFloat16Kernels() != nullptr; }

}  // namespace outrider
