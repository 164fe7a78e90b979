// UTF-8 decoding as in Rust's from_utf8_lossy and Python's errors="replace": every maximal ill-formed
// subsequence (Unicode, section 3.9, table 3-7 and "best practice") becomes one U+FFFD.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace outrider {

bool IsValidUtf8(std::string_view bytes);

// Whether a byte of valid text is not the first of its character.
inline bool IsContinuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// The number of bytes in the first character of `text`, which must be valid UTF-8; 1 if it is empty.
inline size_t CharacterSize(std::string_view text) {
  size_t size = 1;
  while (size < text.size() && IsContinuation(text[size])) ++size;
  return size;
}
// The index at which the character that begins at `begin` ends.
inline size_t CharacterAfter(std::string_view text, size_t begin) {
  return begin + CharacterSize(text.substr(begin));
}

// `bytes` with every ill-formed subsequence replaced. Valid text is returned unchanged.
std::string LossyUtf8(std::string_view bytes);

// LossyUtf8 for streamed bytes: the concatenated outputs of Append and Finish equal LossyUtf8 of the
// concatenated inputs, wherever they were cut. Holds back bytes that may still become a character (at most
// three). Not thread-safe.
class LossyUtf8Stream {
 public:
  // Appends to `out` every character that `bytes` completes.
  void Append(std::string_view bytes, std::string* out);

  // Ends the text: an incomplete character becomes U+FFFD. Resets the stream.
  void Finish(std::string* out);

 private:
  std::string held_;
};

}  // namespace outrider
