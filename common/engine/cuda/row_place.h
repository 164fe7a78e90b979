// The position of a row of a batch in its sequence, and its place in the KV cache.
#pragma once

#include <cstdint>

namespace outrider::cuda {

struct RowPlace {
  int32_t position;
  int32_t block;
  int32_t slot;
};

}  // namespace outrider::cuda
