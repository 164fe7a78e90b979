// A fuzz target: one function that libFuzzer feeds with bytes until something is wrong.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace outrider {

// Each file beside this one defines it. Whatever the bytes are it returns, in bounded time and memory.
void FuzzTarget(std::string_view input);

// A property of what the target found out about its input.
inline void Require(bool holds, const char* property) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", property);
  std::abort();
}

// Takes the input apart, from its front.
class Input {
 public:
  explicit Input(std::string_view bytes) : rest_(bytes) {}

  // 0 at the end.
  uint8_t Byte() {
    if (rest_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return byte;
  }
  // Up to the next zero byte, or all that is left.
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
