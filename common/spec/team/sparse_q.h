// The distribution of a drafted token as a list of entries. Plain data that refers to the memory of others.
#pragma once

#include <cstdint>

#include "common/spec/host_device.h"
#include "common/spec/team/exact_math.h"

namespace outrider::team {

// The first of the ascending ids that is not below `token`.
OUTRIDER_HD inline int LowerBound(const int32_t* ids, int count, int token) {
  int begin = 0;
  while (count > 0) {
    const int half = count / 2;
    if (ids[begin + half] < token) {
      begin += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return begin;
}

// q(x) for the tokens where it may be positive. A point mass has one entry of weight 1.
struct SparseQ {
  const int32_t* ids;
  const float* weights;  // null for a point mass
  int count;
  double inverse_total;

  OUTRIDER_HD double Entry(int i) const {
    return weights == nullptr ? 1.0 : Times(static_cast<double>(weights[i]), inverse_total);
  }
  OUTRIDER_HD double operator()(int token) const {
    const int i = LowerBound(ids, count, token);
    return i < count && ids[i] == token ? Entry(i) : 0.0;
  }
};

}  // namespace outrider::team
