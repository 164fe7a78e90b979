// Elementary functions that give the same bits on host and device. Weights are float32 without subnormals; no
// operation may be approximate (no -use_fast_math). The functions have no branches, so that a loop over them
// is compiled for vectors (weights.cc).
#pragma once

#include <cstdint>
#include <cstring>

#include "common/spec/types.h"

namespace outrider::team {

// a * b, never fused with a following addition.
OUTRIDER_HD inline float Times(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
OUTRIDER_HD inline double Times(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

OUTRIDER_HD inline uint32_t BitsOf(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

OUTRIDER_HD inline float FloatOf(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// `value` if `condition`, else +0.
OUTRIDER_HD inline float Keep(bool condition, float value) {
  return FloatOf(BitsOf(value) & (0u - static_cast<uint32_t>(condition)));
}

OUTRIDER_HD inline bool Finite(float value) { return (BitsOf(value) & 0x7f800000u) != 0x7f800000u; }

// exp((value - max) * inverse_temperature) for value <= max; 0 if that is below the smallest normal float.
// exp(y) = 2^k exp(r) with |r| <= log(2) / 2, and exp(r) is Cephes' expf.
OUTRIDER_HD inline float ExpWeight(float value, float max, float inverse_temperature) {
  constexpr float kSmallest = -87.336544f;  // log of the smallest normal float, rounded towards it
  constexpr float kShift = 12582912.0f;     // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const float z = Times(value - max, inverse_temperature);
  const float y = z > kSmallest ? z : kSmallest;
  const float shifted = Times(y, 1.44269504088896341f) + kShift;
  const float k = shifted - kShift;
  // log(2) in two parts, so that r is exact.
  const float r = (y - Times(k, 0.693359375f)) - Times(k, -2.12194440e-4f);
  float p = 1.9875691500e-4f;
  p = Times(p, r) + 1.3981999507e-3f;
  p = Times(p, r) + 8.3334519073e-3f;
  p = Times(p, r) + 4.1665795894e-2f;
  p = Times(p, r) + 1.6666665459e-1f;
  p = Times(p, r) + 5.0000001201e-1f;
  const float exp_r = Times(p, Times(r, r)) + r + 1.0f;
  const float exp_y = Times(exp_r, FloatOf((BitsOf(shifted) << 23) + 0x3f800000u));
  return Keep(z > kSmallest, exp_y);
}

// weight * log(weight); 0 for weight 0. log(2^e m) = log(m) + e log(2) with m in [sqrt(1/2), sqrt(2)), and
// log(m) is Cephes' logf.
OUTRIDER_HD inline float TimesLog(float weight) {
  const int32_t shifted = static_cast<int32_t>(BitsOf(weight)) - 0x3f3504f3;
  const float e = static_cast<float>(shifted >> 23);
  const float m = FloatOf(static_cast<uint32_t>((shifted & 0x007fffff) + 0x3f3504f3)) - 1.0f;
  float p = 7.0376836292e-2f;
  p = Times(p, m) - 1.1514610310e-1f;
  p = Times(p, m) + 1.1676998740e-1f;
  p = Times(p, m) - 1.2420140846e-1f;
  p = Times(p, m) + 1.4249322787e-1f;
  p = Times(p, m) - 1.6668057665e-1f;
  p = Times(p, m) + 2.0000714765e-1f;
  p = Times(p, m) - 2.4999993993e-1f;
  p = Times(p, m) + 3.3333331174e-1f;
  const float square = Times(m, m);
  const float log = (m - Times(0.5f, square) + Times(Times(p, m), square)) + Times(e, 0.693147180559945f);
  return Times(weight, Keep(weight >= 1.17549435e-38f, log));  // 0 below the smallest normal float
}

}  // namespace outrider::team
