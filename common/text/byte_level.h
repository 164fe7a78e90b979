// The byte-level alphabet of GPT-2: one printable character for each byte, so that tokens can be written in a
// JSON file. See bytes_to_unicode in https://github.com/openai/gpt-2/blob/master/src/encoder.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace outrider {

// The character for `byte`, as UTF-8.
std::string ByteLevelCharacter(uint8_t byte);

// The token of a byte in a vocabulary without this alphabet: "<0x00>" to "<0xFF>", as in SentencePiece.
std::string ByteToken(uint8_t byte);
// The byte that such a token stands for; nullopt for any other token.
std::optional<uint8_t> ByteOfToken(std::string_view token);

// The bytes that `token` stands for; nullopt if one of its characters is not in the alphabet.
std::optional<std::string> ByteLevelToBytes(std::string_view token);

}  // namespace outrider
