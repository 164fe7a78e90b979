// Reads files into strings, and lets std::string_view work with Debian's Abseil, whose absl::string_view is a
// type of its own.
#pragma once

#include <cstddef>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
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

// A map with string keys that is searched by std::string_view without a copy.
template <typename Value>
using StringMap = absl::flat_hash_map<std::string, Value, StringHash, std::equal_to<>>;

// The same with keys that refer to text owned elsewhere.
template <typename Value>
using StringViewMap = absl::flat_hash_map<std::string_view, Value, StringHash, std::equal_to<>>;

// absl::StrCat that accepts std::string_view.
template <typename... Parts>
std::string Concat(const Parts&... parts) {
  const auto adapt = [](const auto& part) -> decltype(auto) {
    if constexpr (std::is_same_v<decltype(part), const std::string_view&>) {
      return absl::string_view(part.data(), part.size());
    } else {
      return (part);
    }
  };
  return absl::StrCat(adapt(parts)...);
}

// The content of the file at `path`. nullopt if it is empty or cannot be read; errno says why it cannot.
inline std::optional<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  // Opening a directory succeeds; reading it fails.
  if (!file || !(content << file.rdbuf())) return std::nullopt;
  return content.str();
}

}  // namespace outrider
