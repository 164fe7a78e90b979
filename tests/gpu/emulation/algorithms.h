// The algorithms of the emulated cuBLASLt, by the first word of a cublasLtMatmulAlgo_t.
#pragma once

#include <cstdint>
#include <vector>

namespace outrider::emulation {

// Algorithms differ in the order in which they add the terms of a sum.
enum class Algorithm : uint64_t {
  kByBatch = 1,  // forwards in products of up to 16 rows, else backwards
  kForwards,
  kBackwards,
  kForwardsToo,
  kBut64,    // forwards, but backwards in products of 64 rows
  kBut192,   // the same for 192
  kByPlace,  // forwards in even rows of a product, backwards in odd ones
};

// The recommended algorithms for few rows and for many, best first. Unless a test changes them, an unusable
// algorithm comes before a usable one.
struct Recommendations {
  std::vector<Algorithm> few_rows = {Algorithm::kByBatch, Algorithm::kForwards};
  std::vector<Algorithm> many_rows = {Algorithm::kBackwards, Algorithm::kForwardsToo};
};
void Recommend(const Recommendations& recommendations);

}  // namespace outrider::emulation
