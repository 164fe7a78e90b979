// The byte-level alphabet of GPT-2: one printable character for each byte, so that tokens can be written in
// a JSON file. https://github.com/openai/gpt-2/blob/master/src/encoder.py, bytes_to_unicode.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace outrider {

// The character for `byte`, as UTF-8.
std::string ByteLevelCharacter(uint8_t byte);

// The bytes that `token` stands for; nothing if it has a character that is not in the alphabet.
std::optional<std::string> ByteLevelToBytes(std::string_view token);

}  // namespace outrider
