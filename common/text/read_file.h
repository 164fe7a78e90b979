// Reads a file into memory.
#pragma once

#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace outrider {

// The content of the file at `path`. nullopt if it is empty or cannot be read; errno says why it cannot.
inline std::optional<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  // Opening a directory succeeds; reading it fails.
  if (!file || !(content << file.rdbuf())) return std::nullopt;
  return content.str();
}

}  // namespace outrider
