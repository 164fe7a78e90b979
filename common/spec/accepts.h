// The test of speculative decoding.
#pragma once

#include "common/spec/host_device.h"
#include "common/spec/types.h"

namespace outrider {

// Whether token x, sampled from q, is accepted where the target has p, for a uniform number u in [0, 1)
// (Leviathan et al., arXiv 2211.17192, Algorithm 1 and Theorem 1: with the correction from what p has more
// than q, the token that is emitted has the law p). p and q give the probability of a token. Strict, so that
// a token with p(x) = 0 is never accepted, also for u = 0.
template <class P, class Q>
OUTRIDER_HD bool Accepts(double u, TokenId x, const P& p, const Q& q) {
  return u * q(x) < p(x);
}

}  // namespace outrider
