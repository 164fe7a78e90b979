// The algorithms of the emulated cuBLASLt, by the first word of a cublasLtMatmulAlgo_t.
#pragma once

#include <cstdint>
#include <vector>

namespace outrider::emulation {

// By the order in which the terms of a sum are added.
enum class Algorithm : uint64_t {
  kByBatch = 1,  // forwards in products of up to 16 rows, else backwards
  kForwards,
  kBackwards,
  kForwardsToo,
  kBut64,    // forwards, but backwards in products of 64 rows
  kBut192,   // the same for 192
  kByPlace,  // forwards in even rows of a product, backwards in odd ones
};

// What is recommended for few rows and for many, best first: algorithms that will not do before one that
// will, unless a test says something else.
struct Recommendations {
  std::vector<Algorithm> few_rows = {Algorithm::kByBatch, Algorithm::kForwards};
  std::vector<Algorithm> many_rows = {Algorithm::kBackwards, Algorithm::kForwardsToo};
};
void Recommend(const Recommendations& recommendations);

}  // namespace outrider::emulation
