#include "common/text/regex.h"

#include <algorithm>
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

// PCRE2 counts the steps of a match from each place where it tries one, so that its limit alone would allow
// this many for every character of a text.
constexpr uint32_t kUsualSteps = 256;
// The memory for backtracking that the interpreter may take for a match at one place.
constexpr uint32_t kHeapKibibytes = 512 << 10;

// Finds matches in one text, with a limit on the steps over all of it.
class Search {
 public:
  Search(const pcre2_code* pcre, std::string_view text)
      : pcre_(pcre),
        text_(text),
        data_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)),
        steps_left_(32 * static_cast<uint64_t>(text.size())) {
    pcre2_set_heap_limit(context_.get(), kHeapKibibytes);
  }

  // PCRE2's result for the first match that begins at `position` or later.
  int From(size_t position) {
    int result = Try(position, 0, kUsualSteps);
    if (result != PCRE2_ERROR_MATCHLIMIT) return result;
    // Somewhere from here on a match takes more steps, as a long word does. They count against those of the
    // text.
    for (; position <= text_.size(); position = NextCharacter(text_, position)) {
      result = TryHere(position);
      if (result != PCRE2_ERROR_NOMATCH) return result;
    }
    return PCRE2_ERROR_NOMATCH;
  }

  // The last match.
  std::pair<size_t, size_t> found() const {
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data_.get());
    return {offsets[0], offsets[1]};
  }

 private:
  int TryHere(size_t position) {
    int result = Try(position, PCRE2_ANCHORED, kUsualSteps);
    for (uint64_t steps = kUsualSteps * 4; result == PCRE2_ERROR_MATCHLIMIT; steps *= 4) {
      steps = std::min(steps, steps_left_);
      if (steps <= kUsualSteps) break;
      steps_left_ -= steps;
      result = Try(position, PCRE2_ANCHORED, steps);
    }
    return result;
  }

  int Try(size_t position, uint32_t options, uint64_t steps) {
    const auto limit = static_cast<uint32_t>(std::min<uint64_t>(steps, std::numeric_limits<uint32_t>::max()));
    pcre2_set_match_limit(context_.get(), limit);
    pcre2_set_depth_limit(context_.get(), limit);
    options |= PCRE2_NO_UTF_CHECK;  // validating the UTF-8 again for every match would take quadratic time
    int result = Match(position, options);
    // The interpreter backtracks on the heap.
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = Match(position, options | PCRE2_NO_JIT);
    return result == PCRE2_ERROR_DEPTHLIMIT ? PCRE2_ERROR_MATCHLIMIT : result;
  }

  int Match(size_t position, uint32_t options) {
    return pcre2_match(pcre_, Bytes(text_), text_.size(), position, options, data_.get(), context_.get());
  }

  const pcre2_code* const pcre_;
  const std::string_view text_;
  const MatchDataPtr data_;
  const MatchContextPtr context_;
  uint64_t steps_left_;  // for matches that take more than kUsualSteps
};

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

absl::Status Regex::ForEachMatch(std::string_view text, absl::FunctionRef<void(size_t, size_t)> match) const {
  Search search(code_->pcre.get(), text);
  size_t position = 0;
  size_t last_end = std::string_view::npos;
  while (position <= text.size()) {
    const int result = search.From(position);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) {
      return absl::ResourceExhaustedError(
          Concat("a regex of the tokenizer does not come to an end on this text: ", ErrorMessage(result)));
    }
    const auto [begin, end] = search.found();
    if (begin != end || begin != last_end) match(begin, end);
    last_end = end;
    position = begin == end ? NextCharacter(text, end) : end;
  }
  return absl::OkStatus();
}

}  // namespace outrider
