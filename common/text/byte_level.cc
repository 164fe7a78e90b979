#include "common/text/byte_level.h"

#include <array>
#include <cstddef>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"

namespace outrider {
namespace {

// Bytes that are printable in Latin-1 stand for themselves; the others become U+0100, U+0101, ... in order.
constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

constexpr int kCodePoints = 0x100 + 68;  // 68 bytes don't stand for themselves.

struct Alphabet {
  std::array<uint16_t, 256> code_point{};
  std::array<int16_t, kCodePoints> byte{};  // -1 for code points outside the alphabet.
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  for (int16_t& byte : alphabet.byte) byte = -1;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const int code_point = StandsForItself(byte) ? byte : next++;
    alphabet.code_point[byte] = static_cast<uint16_t>(code_point);
    alphabet.byte[code_point] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

std::string ByteLevelCharacter(uint8_t byte) {
  const int code_point = kAlphabet.code_point[byte];
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xC0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 0x3F))};
}

std::string ByteToken(uint8_t byte) { return absl::StrFormat("<0x%02X>", byte); }

std::optional<uint8_t> ByteOfToken(std::string_view token) {
  uint32_t byte = 0;
  if (token.size() != 6 || !absl::SimpleHexAtoi(absl::string_view(token.data() + 3, 2), &byte))
    return std::nullopt;
  if (token != ByteToken(static_cast<uint8_t>(byte))) return std::nullopt;
  return static_cast<uint8_t>(byte);
}

std::optional<std::string> ByteLevelToBytes(std::string_view token) {
  std::string bytes;
  for (size_t i = 0; i < token.size(); ++i) {
    int code_point = static_cast<uint8_t>(token[i]);
    if (code_point >= 0xC0 && code_point < 0xE0 && i + 1 < token.size()) {
      code_point = ((code_point & 0x1F) << 6) | (static_cast<uint8_t>(token[++i]) & 0x3F);
    } else if (code_point >= 0x80) {
      return std::nullopt;
    }
    if (code_point >= kCodePoints || kAlphabet.byte[code_point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kAlphabet.byte[code_point]));
  }
  return bytes;
}

}  // namespace outrider
