// Stores in a file which of cuBLASLt's algorithms compute a model's products, so that a later start can use
// the same ones. Runs on the host, without CUDA.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace outrider::cuda {

// An algorithm of cuBLASLt.
struct MatmulAlgorithm {
  // The data of a cublasLtMatmulAlgo_t, which the same version of the library accepts again.
  std::array<uint64_t, 8> words = {};
  std::string config;  // a description, for readers
  friend bool operator==(const MatmulAlgorithm&, const MatmulAlgorithm&) = default;
};

// How the rows of a product are launched. The first way is preferred, the last is the slowest.
enum class MatmulLaunches : uint8_t {
  kPair,     // by one algorithm that cuBLASLt recommends for few rows and one that it recommends for many
  kFewOnly,  // by one for few rows alone: none for many rows has the same bits as any for few
  kTiles,    // 16 rows at a time by one for few rows: none gives a row the same bits in larger launches
};

// The algorithms for weights [n, k]. Both give a row the same bits.
struct MatmulChoice {
  int n = 0;
  int k = 0;
  MatmulAlgorithm few_rows;
  MatmulAlgorithm many_rows;
  MatmulLaunches launches = MatmulLaunches::kPair;
  friend bool operator==(const MatmulChoice&, const MatmulChoice&) = default;
};

// Everything that the bits of a product depend on, apart from its operands.
struct MatmulChoices {
  std::string gpu;      // its name
  int cublas = 0;       // the version of cuBLASLt, from cublasLtGetVersion
  std::string operand;  // "bfloat16" or "fp8"
  std::vector<MatmulChoice> products;

  const MatmulChoice* Find(int n, int k) const;
};

// The contents of the file, or nothing if the file does not exist. FAILED_PRECONDITION, naming both values,
// if it was written for another GPU, version or operand than those of `here`; INVALID_ARGUMENT, naming file
// and field, for a file that WriteMatmulChoices did not write.
absl::StatusOr<std::optional<MatmulChoices>> ReadMatmulChoices(const std::string& path,
                                                               const MatmulChoices& here);

// Writes the file atomically: a reader finds all of it or none. UNAVAILABLE, naming the file, on failure.
absl::Status WriteMatmulChoices(const std::string& path, const MatmulChoices& choices);

// The choices on one line, without MatmulAlgorithm::words.
std::string InWords(const MatmulChoices& choices);

}  // namespace outrider::cuda
