#include "common/text/regex.h"

#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/status/status.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include "common/text/strings.h"

namespace outrider {
namespace {

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using CodePtr = std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>>;
using MatchDataPtr = std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>>;
using MatchContextPtr = std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>>;

PCRE2_SPTR Bytes(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data() == nullptr ? "" : text.data());
}

std::string ErrorMessage(int code) {
  std::array<PCRE2_UCHAR, 256> message{};
  pcre2_get_error_message(code, message.data(), message.size());
  return reinterpret_cast<const char*>(message.data());
}

size_t NextCharacter(std::string_view text, size_t position) {
  do {
    ++position;
  } while (position < text.size() && (static_cast<uint8_t>(text[position]) & 0xC0) == 0x80);
  return position;
}

}  // namespace

struct Regex::Code {
  CodePtr pcre;
};

absl::StatusOr<Regex> Regex::Compile(const std::string& pattern, Syntax syntax) {
  const uint32_t options =
      syntax == Syntax::kLiteral ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE;
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_shared<Code>();
  code->pcre.reset(pcre2_compile(Bytes(pattern), pattern.size(), options, &error, &offset, nullptr));
  if (code->pcre == nullptr) {
    return absl::InvalidArgumentError(
        Concat("regex \"", pattern, "\": ", ErrorMessage(error), " at offset ", offset));
  }
  // Without a JIT (or without permission for executable memory) pcre2_match interprets the same pattern.
  pcre2_jit_compile(code->pcre.get(), PCRE2_JIT_COMPLETE);
  return Regex(std::move(code));
}

void Regex::ForEachMatch(std::string_view text, absl::FunctionRef<void(size_t, size_t)> match) const {
  const pcre2_code* pcre = code_->pcre.get();
  MatchDataPtr data(pcre2_match_data_create(1, nullptr));
  MatchContextPtr context(pcre2_match_context_create(nullptr));
  // No limits: backtracking over a megabyte of spaces means a long text, not a runaway pattern.
  pcre2_set_match_limit(context.get(), std::numeric_limits<uint32_t>::max());
  pcre2_set_depth_limit(context.get(), std::numeric_limits<uint32_t>::max());

  // Validating the UTF-8 again for every match would take quadratic time.
  const uint32_t options = PCRE2_NO_UTF_CHECK;
  size_t position = 0;
  size_t last_end = std::string_view::npos;
  while (position <= text.size()) {
    int result = pcre2_match(pcre, Bytes(text), text.size(), position, options, data.get(), context.get());
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) {  // The interpreter backtracks on the heap.
      result = pcre2_match(pcre, Bytes(text), text.size(), position, options | PCRE2_NO_JIT, data.get(),
                           context.get());
    }
    if (result < 0) return;
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data.get());
    const size_t begin = offsets[0];
    const size_t end = offsets[1];
    if (begin != end || begin != last_end) match(begin, end);
    last_end = end;
    position = begin == end ? NextCharacter(text, end) : end;
  }
}

}  // namespace outrider
