// A fuzz target: a function that libFuzzer calls with bytes until it finds an error.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace outrider {

// Defined by each target in this folder. Must return whatever the bytes are, in bounded time and memory.
void FuzzTarget(std::string_view input);

// Aborts and prints the property if it does not hold.
inline void Require(bool holds, const char* property) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", property);
  std::abort();
}

// Reads the input piece by piece, from its front.
class Input {
 public:
  explicit Input(std::string_view bytes) : rest_(bytes) {}

  // Returns 0 at the end.
  uint8_t Byte() {
    if (rest_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return byte;
  }
  // Returns the text up to the next zero byte, or the rest if there is none.
  std::string Text() {
    std::string text(rest_.substr(0, rest_.find('\0')));
    rest_.remove_prefix(std::min(rest_.size(), text.size() + 1));
    return text;
  }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

}  // namespace outrider
