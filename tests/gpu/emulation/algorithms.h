// The algorithms of the emulated cuBLASLt, by the first word of a cublasLtMatmulAlgo_t.
#pragma once

#include <cstdint>

namespace outrider::emulation {

enum class Algorithm : uint64_t {
  kByBatch = 1,  // the order of a sum depends on the number of rows; recommended for few rows
  kForwards,     // the next one that is
  kBackwards,    // always the same order, but another one; recommended for many rows
  kForwardsToo,  // the next one that is
};

}  // namespace outrider::emulation
