// Python's str.strip, str.lstrip and str.rstrip. The engine's know the white space of ASCII and the bytes of
// characters.
#pragma once

#include <optional>
#include <string_view>

namespace outrider {

enum class StripEnds { kBoth, kLeft, kRight };

// `text`, valid UTF-8, without the characters at its ends that are white space as Python's str.isspace says,
// or, if there are `characters`, one of these.
std::string_view Strip(std::string_view text, StripEnds ends, std::optional<std::string_view> characters);

}  // namespace outrider
