// The id of a sequence: 128 random bits, drawn by the coordinator once for each generation.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"

namespace outrider {

struct SequenceId {
  uint64_t hi = 0;
  uint64_t lo = 0;

  friend auto operator<=>(const SequenceId&, const SequenceId&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const SequenceId& id) {
    return H::combine(std::move(h), id.hi, id.lo);
  }
  // 32 hexadecimal digits.
  std::string ToString() const { return absl::StrFormat("%016x%016x", hi, lo); }
};

}  // namespace outrider
