#include "common/text/regex.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include "common/spec/status.h"
#include "common/text/strings.h"
#include "common/text/unicode_additions.h"
#include "common/text/utf8.h"

namespace outrider {
namespace {

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
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

// The steps that a match may usually take. PCRE2 counts the steps anew at each place where it tries a match,
// so its limit alone would allow this many for every character of a text.
constexpr uint32_t kUsualSteps = 256;
// The memory for backtracking that the interpreter may take for a match at one place.
constexpr uint32_t kHeapKibibytes = 512 << 10;

// Finds matches in one text, with a limit on the steps of all of them together.
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
    // A match at some place from here on takes more steps, as one of a long word does. These steps count
    // against the limit for the text.
    for (; position <= text_.size(); position = CharacterAfter(text_, position)) {
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

constexpr std::array<std::string_view, 14> kCategories = {"L", "Lu", "Ll", "Lt", "Lm", "Lo", "M",
                                                          "N", "Nd", "Nl", "No", "P",  "S",  "Z"};

// The content of a character class for a general category. "L" includes "Lu", "Ll" and so on.
std::string CategoryMembers(std::string_view category) {
  std::string members = Concat("\\p{", category, "}");
  for (const CategoryAdditions& additions : Unicode16Additions()) {
    if (!additions.category.starts_with(category)) continue;
    for (size_t i = 0; i < additions.ranges.size(); i += 2) {
      absl::StrAppendFormat(&members, "\\x{%X}-\\x{%X}", additions.ranges[i], additions.ranges[i + 1]);
    }
  }
  return members;
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : rest_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (!rest_.empty()) OUTRIDER_TRY(Next());
    if (in_class_) return Unsupported("[ without ]");
    return std::move(out_);
  }

 private:
  static absl::Status Unsupported(std::string_view what) {
    return absl::InvalidArgumentError(Concat("regex construct ", what, " is not supported"));
  }

  absl::Status Next() {
    const char c = rest_[0];
    if (c == '\\') return Escape();
    if (in_class_) {
      if (c == '[') return Unsupported("[ in a class");
      if (rest_.starts_with("&&")) return Unsupported("&&");
      if (c == ']') in_class_ = false;
      return Copy(1);
    }
    if (c == '[') {
      in_class_ = true;
      const size_t size = rest_.starts_with("[^") ? 2 : 1;
      return rest_.substr(size).starts_with("]") ? Unsupported("[]") : Copy(size);
    }
    if (rest_.starts_with("(?")) return OpenGroup();
    if (c == '{' && (rest_.size() < 2 || !absl::ascii_isdigit(rest_[1])))
      return Unsupported("{ without a number");
    // "}+" is possessive in PCRE2, and a repeated repeat in Oniguruma.
    if (rest_.starts_with("}+")) return Unsupported("}+");
    return Copy(1);
  }

  absl::Status OpenGroup() {
    for (const std::string_view group : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?-i:"}) {
      if (rest_.starts_with(group)) return Copy(group.size());
    }
    // Elsewhere PCRE2 and Oniguruma disagree on which alternatives the option covers.
    if (rest_.starts_with("(?i)") && out_.empty()) return Copy(4);
    return Unsupported(rest_.substr(0, 4));
  }

  absl::Status Escape() {
    if (rest_.size() < 2) return Unsupported("\\ at the end");
    const char c = rest_[1];
    if (c == 'p' || c == 'P') return Property();
    if (c == 's' || c == 'S') return Set("\\p{White_Space}", c == 'S', 2);
    if (c == 'd' || c == 'D') return Set(CategoryMembers("Nd"), c == 'D', 2);
    if (c == 'u') return CodePoint();
    if (c == 'x' || c == 'r' || c == 'n' || c == 't' || c == 'f' || !absl::ascii_isalnum(c)) return Copy(2);
    return Unsupported(rest_.substr(0, 2));
  }

  absl::Status Property() {
    const size_t end = rest_.find('}');
    if (rest_.size() < 3 || rest_[2] != '{' || end == std::string_view::npos)
      return Unsupported("\\p without {}");
    const std::string_view name = rest_.substr(3, end - 3);
    if (std::find(kCategories.begin(), kCategories.end(), name) == kCategories.end()) {
      return Unsupported(rest_.substr(0, end + 1));
    }
    return Set(CategoryMembers(name), rest_[1] == 'P', end + 1);
  }

  absl::Status CodePoint() {
    const std::string_view digits = rest_.substr(2, 4);
    if (digits.size() < 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos) {
      return Unsupported("\\u without four digits");
    }
    out_ += Concat("\\x{", digits, "}");
    rest_.remove_prefix(6);
    return absl::OkStatus();
  }

  // Writes a set of characters, given as the content of a class, in place of the next `size` bytes of the
  // pattern.
  absl::Status Set(std::string_view members, bool negated, size_t size) {
    if (in_class_) {
      if (negated && members != "\\p{White_Space}") return Unsupported("a negated set in a class");
      out_ += Concat(negated ? "\\P{White_Space}" : members);
    } else {
      out_ += Concat(negated ? "[^" : "[", members, "]");
    }
    rest_.remove_prefix(size);
    return absl::OkStatus();
  }

  absl::Status Copy(size_t size) {
    out_ += Concat(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return absl::OkStatus();
  }

  std::string_view rest_;
  std::string out_;
  bool in_class_ = false;
};

}  // namespace

absl::StatusOr<Regex> Regex::Compile(const std::string& pattern, Syntax syntax) {
  const uint32_t options =
      syntax == Syntax::kLiteral ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE;
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* const code = pcre2_compile(Bytes(pattern), pattern.size(), options, &error, &offset, nullptr);
  if (code == nullptr)
    return Invalid("regex \"", pattern, "\": ", ErrorMessage(error), " at offset ", offset);
  // Without a JIT (or without permission for executable memory) pcre2_match interprets the same pattern.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return Regex({code, pcre2_code_free});
}

absl::Status Regex::ForEachMatch(std::string_view text, absl::FunctionRef<void(size_t, size_t)> match) const {
  Search search(static_cast<const pcre2_code*>(code_.get()), text);
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
    position = begin == end ? CharacterAfter(text, end) : end;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> PcreFromOniguruma(std::string_view pattern) { return Translator(pattern).Run(); }

std::string RustWordCharacter() {
  return Concat("[\\p{Alphabetic}\\p{Pc}\\x{200C}\\x{200D}", CategoryMembers("L"), CategoryMembers("M"),
                CategoryMembers("Nd"), "]");
}

}  // namespace outrider
