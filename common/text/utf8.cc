#include "common/text/utf8.h"

#include <cstdint>

namespace outrider {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

enum class Sequence {
  kCharacter,  // A well-formed character.
  kIllFormed,  // A maximal subpart that no further byte can make a character.
  kCutShort,   // The input ends, but more bytes could complete a character.
};

// The unit that `bytes`, not empty, begins with; `size` is its length in bytes.
Sequence Classify(std::string_view bytes, size_t* size) {
  const auto lead = static_cast<uint8_t>(bytes[0]);
  *size = 1;
  if (lead < 0x80) return Sequence::kCharacter;
  if (lead < 0xC2 || lead > 0xF4) return Sequence::kIllFormed;
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // Only the second byte has a range of its own, which excludes overlong forms, surrogates, and code points
  // beyond U+10FFFF.
  uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (; *size < length; ++*size) {
    if (*size == bytes.size()) return Sequence::kCutShort;
    const auto byte = static_cast<uint8_t>(bytes[*size]);
    if (byte < low || byte > high) return Sequence::kIllFormed;
    low = 0x80;
    high = 0xBF;
  }
  return Sequence::kCharacter;
}

}  // namespace

bool IsValidUtf8(std::string_view bytes) {
  size_t size = 0;
  for (; !bytes.empty(); bytes.remove_prefix(size)) {
    if (Classify(bytes, &size) != Sequence::kCharacter) return false;
  }
  return true;
}

std::string LossyUtf8(std::string_view bytes) {
  std::string out;
  LossyUtf8Stream stream;
  stream.Append(bytes, &out);
  stream.Finish(&out);
  return out;
}

void LossyUtf8Stream::Append(std::string_view bytes, std::string* out) {
  std::string joined;
  if (!held_.empty()) {
    joined = std::move(held_);
    joined.append(bytes);
    bytes = joined;
    held_.clear();
  }
  out->reserve(out->size() + bytes.size());
  while (!bytes.empty()) {
    size_t size = 0;
    const Sequence sequence = Classify(bytes, &size);
    if (sequence == Sequence::kCutShort) {
      held_ = bytes;
      return;
    }
    out->append(sequence == Sequence::kCharacter ? bytes.substr(0, size) : kReplacement);
    bytes.remove_prefix(size);
  }
}

void LossyUtf8Stream::Finish(std::string* out) {
  if (!held_.empty()) out->append(kReplacement);
  held_.clear();
}

}  // namespace outrider
