// Where a row of a batch stands.
#pragma once

#include <cstdint>

namespace outrider::cuda {

struct RowPlace {
  int32_t position;
  int32_t block;
  int32_t slot;
};

}  // namespace outrider::cuda
