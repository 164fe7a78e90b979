// Texts that somebody else chose, for messages and logs.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace outrider {

// The text, or if it is longer than `most` bytes its beginning, which ends with a whole character of UTF-8,
// and how long it was.
inline std::string Excerpt(absl::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return absl::StrCat(text.substr(0, end), "... (", text.size(), " bytes)");
}

}  // namespace outrider
