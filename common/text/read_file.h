// Whole files.
#pragma once

#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace outrider {

// What is in it; nothing if it cannot be read, with the reason in errno, or if it is empty.
inline std::optional<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  // Opening a folder succeeds and reading it fails.
  if (!file || !(content << file.rdbuf())) return std::nullopt;
  return content.str();
}

}  // namespace outrider
