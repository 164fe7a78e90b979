// UTF-8 as Rust's from_utf8_lossy and Python's errors="replace" read it: every maximal ill-formed
// subsequence (Unicode, section 3.9, table 3-7 and "best practice") becomes one U+FFFD.
#pragma once

#include <string>
#include <string_view>

namespace outrider {

bool IsValidUtf8(std::string_view bytes);

// `bytes` with every ill-formed subsequence replaced. Valid text comes back unchanged.
std::string LossyUtf8(std::string_view bytes);

// LossyUtf8 for bytes that arrive in pieces: the outputs of Append and Finish, joined, equal LossyUtf8 of
// the inputs, joined, wherever they were cut. Bytes that may still become a character are held back (at
// most three). Not thread-safe.
class LossyUtf8Stream {
 public:
  // Appends to `out` every character that `bytes` completes.
  void Append(std::string_view bytes, std::string* out);

  // Ends the text: a character that was begun and not completed becomes U+FFFD. The stream is then as new.
  void Finish(std::string* out);

 private:
  std::string held_;
};

}  // namespace outrider
