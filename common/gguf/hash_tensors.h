// Hashes a model's weights.
#pragma once

#define XXH_INLINE_ALL  // so that the plug-in for GPUs needs no further library

#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace outrider {

// XXH3-64 of the names, types, shapes and bytes of all tensors, in the order of their names. It is the same
// for the same weights, however they are spread over files. `tensors` maps each name to a struct with `shape`
// and `data`; name_of_type(tensor) is the format's name of its type.
template <class Tensors, class NameOfType>
uint64_t HashTensors(const Tensors& tensors, const NameOfType& name_of_type) {
  std::vector<absl::string_view> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  std::sort(names.begin(), names.end());
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (const absl::string_view name : names) {
    const auto& tensor = tensors.at(name);
    const std::string header =
        absl::StrCat(name, "\n", name_of_type(tensor), "\n[", absl::StrJoin(tensor.shape, ", "), "]\n");
    XXH3_64bits_update(&state, header.data(), header.size());
    XXH3_64bits_update(&state, tensor.data.data(), tensor.data.size());
  }
  return XXH3_64bits_digest(&state);
}

}  // namespace outrider
