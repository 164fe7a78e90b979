// What joins std::string_view to Debian's Abseil, whose own string_view is another type.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace outrider {

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

// Keyed by text, looked up by std::string_view without making a string.
template <typename Value>
using StringMap = absl::flat_hash_map<std::string, Value, StringHash, std::equal_to<>>;

// The same over text that lives elsewhere.
template <typename Value>
using StringViewMap = absl::flat_hash_map<std::string_view, Value, StringHash, std::equal_to<>>;

inline absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }

// absl::StrCat that takes std::string_view.
template <typename... Parts>
std::string Concat(const Parts&... parts) {
  const auto adapt = [](const auto& part) -> decltype(auto) {
    if constexpr (std::is_same_v<decltype(part), const std::string_view&>) {
      return ToAbsl(part);
    } else {
      return (part);
    }
  };
  return absl::StrCat(adapt(parts)...);
}

}  // namespace outrider
