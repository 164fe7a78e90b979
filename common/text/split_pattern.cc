#include "common/text/split_pattern.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "common/text/strings.h"
#include "common/text/unicode_additions.h"

namespace outrider {
namespace {

constexpr std::array<std::string_view, 14> kCategories = {"L", "Lu", "Ll", "Lt", "Lm", "Lo", "M",
                                                          "N", "Nd", "Nl", "No", "P",  "S",  "Z"};

bool IsCategory(std::string_view name) {
  return std::find(kCategories.begin(), kCategories.end(), name) != kCategories.end();
}

// The content of a character class for a general category. "L" includes "Lu", "Ll" and so on.
std::string CategoryMembers(std::string_view category) {
  std::string members = Concat("\\p{", category, "}");
  for (const CategoryAdditions& additions : Unicode16Additions()) {
    if (!additions.category.starts_with(category)) continue;
    for (const CodePointRange& range : additions.ranges) {
      absl::StrAppendFormat(&members, "\\x{%X}-\\x{%X}", range.first, range.last);
    }
  }
  return members;
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : rest_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (!rest_.empty()) {
      if (absl::Status status = Next(); !status.ok()) return status;
    }
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
    if (c == '[') return OpenClass();
    if (rest_.starts_with("(?")) return OpenGroup();
    if (c == '{' && (rest_.size() < 2 || !absl::ascii_isdigit(rest_[1])))
      return Unsupported("{ without a number");
    // "}+" is possessive in PCRE2, and a repeated repeat in Oniguruma.
    if (rest_.starts_with("}+")) return Unsupported("}+");
    return Copy(1);
  }

  absl::Status OpenClass() {
    in_class_ = true;
    const size_t size = rest_.starts_with("[^") ? 2 : 1;
    if (rest_.substr(size).starts_with("]")) return Unsupported("[]");
    return Copy(size);
  }

  absl::Status OpenGroup() {
    for (const std::string_view group : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?-i:"}) {
      if (rest_.starts_with(group)) return Copy(group.size());
    }
    // Elsewhere the two disagree on which alternatives the option covers.
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
    if (!IsCategory(name)) return Unsupported(rest_.substr(0, end + 1));
    return Set(CategoryMembers(name), rest_[1] == 'P', end + 1);
  }

  absl::Status CodePoint() {
    const std::string_view digits = rest_.substr(2, 4);
    for (const char digit : digits) {
      if (!absl::ascii_isxdigit(digit)) return Unsupported("\\u without four digits");
    }
    if (digits.size() < 4) return Unsupported("\\u without four digits");
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

absl::StatusOr<std::string> PcreFromOniguruma(std::string_view pattern) { return Translator(pattern).Run(); }

std::string RustWordCharacter() {
  return Concat("[\\p{Alphabetic}\\p{Pc}\\x{200C}\\x{200D}", CategoryMembers("L"), CategoryMembers("M"),
                CategoryMembers("Nd"), "]");
}

}  // namespace outrider
