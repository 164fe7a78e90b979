#include "common/grammar/json_pattern.h"

#include <algorithm>
#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

constexpr int kMaxNesting = 32;
// XGrammar unrolls repetitions up to this count. Its automata for larger counts allow other texts too.
constexpr int kMaxUnrolled = 128;
// The most states of a pattern that matches escapable characters, with repetitions unrolled. XGrammar builds
// no automaton for a larger one, and then a quote that a class matches does not end the string.
constexpr int64_t kMaxStates = 4000;

constexpr std::string_view kPunctuation = R"(!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~)";

// The characters of a class: its ASCII characters, and whether it has others.
struct Characters {
  std::bitset<128> ascii;
  bool others = false;

  void AddRange(uint32_t first, uint32_t last) {
    for (uint32_t c = first; c <= last && c < 128; ++c) ascii.set(c);
    others = others || last >= 128;
  }
  // The characters that may be in a JSON string without an escape.
  static const Characters& Plain() {
    static const Characters plain = [] {
      Characters characters;
      characters.AddRange(' ', 0x10ffff);
      characters.ascii.reset('"').reset('\\');
      return characters;
    }();
    return plain;
  }
};

class PatternChecker {
 public:
  explicit PatternChecker(std::string_view pattern) : rest_(pattern) {}

  absl::Status Check() {
    Eat('^');
    if (rest_.ends_with('$') && !IsEscaped(rest_.size() - 1)) rest_.remove_suffix(1);
    const Size size = OUTRIDER_TRY(Alternatives());
    if (!rest_.empty()) return Invalid("an unmatched ", std::string(rest_.substr(0, 1)));
    if (size.matches_escaped && size.states > kMaxStates) return TooLarge();
    return absl::OkStatus();
  }

 private:
  // The size and the properties of a part of the pattern.
  struct Size {
    int64_t states = 0;
    bool is_character = false;
    bool loops = false;            // it has a repetition that may go on after an accepting state
    bool is_counted = false;       // it has a repetition with different counts
    bool matches_escaped = false;  // it matches characters that a JSON string has only escaped, which the
                                   // automaton must leave out
  };

  static absl::Status TooLarge() {
    return Invalid(
        "repetitions of a class with quotes, backslashes or control characters come to too much: name the "
        "class's "
        "characters");
  }

  bool Eat(char c) {
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  bool IsEscaped(size_t at) const {
    size_t backslashes = 0;
    while (backslashes < at && rest_[at - 1 - backslashes] == '\\') ++backslashes;
    return backslashes % 2 == 1;
  }

  absl::StatusOr<Size> Alternatives() {
    Size all;
    bool has_several = false;
    if (++nesting_ > kMaxNesting) return Invalid("groups are nested more than ", kMaxNesting, " deep");
    do {
      while (!rest_.empty() && rest_[0] != '|' && rest_[0] != ')') {
        const Size one = OUTRIDER_TRY(Repeated());
        all.states += one.states;
        all.loops = all.loops || one.loops;
        all.is_counted = all.is_counted || one.is_counted;
        all.matches_escaped = all.matches_escaped || one.matches_escaped;
      }
      has_several = has_several || rest_.starts_with('|');
    } while (Eat('|'));
    --nesting_;
    // XGrammar's automata sometimes continue from the end of another alternative.
    if (has_several && all.is_counted) return Invalid("\"{n,m}\" in an alternative");
    return all;
  }

  // An atom with its quantifier.
  absl::StatusOr<Size> Repeated() {
    Size size = OUTRIDER_TRY(Atom());
    if (Eat('{')) {
      const auto least = Number();
      if (!least) return Invalid("\"{\" without a count");
      std::optional<int64_t> most = least;
      if (Eat(',')) most = Number();
      if (!Eat('}') || (most && *most < *least)) return Invalid("a malformed repetition");
      const int64_t copies = most.value_or(std::max<int64_t>(*least, 1));
      if (copies > kMaxUnrolled) return Invalid("a count beyond ", kMaxUnrolled);
      // XGrammar may go back from one end of the last copy to a different end of the copy before it.
      if (!most && !size.is_character)
        return Invalid("\"{n,}\" after a group: write it {n} times, then with a \"*\"");
      size.is_counted = size.is_counted || (most && most != least);
      size.loops = size.loops || most != least;
      size.states = std::min(size.states * copies, kMaxStates + 1);
    } else if (Eat('*') || Eat('+')) {
      size.loops = true;
    } else if (Eat('?')) {
      // XGrammar joins the beginning with the end, from which the loops can then be entered.
      if (size.loops) return Invalid("\"?\" after a group with repetitions: write \"{0,1}\"");
    } else {
      return size;
    }
    size.is_character = false;
    Eat('?');
    return size;
  }

  std::optional<int64_t> Number() {
    size_t digits = 0;
    int64_t number = 0;
    for (; digits < rest_.size() && absl::ascii_isdigit(static_cast<unsigned char>(rest_[digits]));
         ++digits) {
      number = std::min<int64_t>(number * 10 + rest_[digits] - '0', INT32_MAX);
    }
    rest_.remove_prefix(digits);
    return digits == 0 ? std::nullopt : std::optional(number);
  }

  absl::StatusOr<Size> Atom() {
    if (Eat('(')) {
      if (Eat('?') && !Eat(':')) return Invalid("a group that begins with \"(?\", other than \"(?:\"");
      Size size = OUTRIDER_TRY(Alternatives());
      if (!Eat(')')) return Invalid("a group without its end");
      return size;
    }
    if (Eat('[')) return SizeOf(OUTRIDER_TRY(Class()));
    if (Eat('.')) return SizeOf(Complement({}));
    if (rest_[0] == '\\') return SizeOf(OUTRIDER_TRY(Escape()).first);
    const char c = rest_[0];
    if (c == '^' || c == '$')
      return Invalid("an anchor other than \"^\" at its beginning and \"$\" at its end");
    if (std::string_view("*+?{}]").find(c) != std::string_view::npos)
      return Invalid("a \"", std::string(rest_.substr(0, 1)), "\" that is not escaped");
    return SizeOf(Single(OUTRIDER_TRY(Character())));
  }

  // An atom that matches one of `characters`.
  static absl::StatusOr<Size> SizeOf(const Characters& characters) {
    const Characters& plain = Characters::Plain();
    if (!characters.others && (characters.ascii & plain.ascii).none()) {
      return Invalid(
          "a character that a JSON string has only escaped: a quote, a backslash or a control character");
    }
    return Size{.states = characters.others ? 8 : 1,
                .is_character = true,
                .matches_escaped = (characters.ascii & ~plain.ascii).any()};
  }

  static Characters Single(uint32_t c) {
    Characters characters;
    characters.AddRange(c, c);
    return characters;
  }
  static Characters Complement(Characters characters) {
    characters.ascii.flip();
    characters.others =
        true;  // others remain: classes name characters, and negated classes contain no \D or \W
    return characters;
  }

  // Reads a printable ASCII character. XGrammar's automata cannot read others, which must be escaped.
  absl::StatusOr<uint32_t> Character() {
    const auto c = static_cast<unsigned char>(rest_[0]);
    if (c < ' ' || c > '~')
      return Invalid("a character that is not printable ASCII: write \\u and four digits");
    rest_.remove_prefix(1);
    return c;
  }

  // Reads a class, after its "[".
  absl::StatusOr<Characters> Class() {
    Characters characters;
    const bool negated = Eat('^');
    bool any = false;
    while (!Eat(']')) {
      if (rest_.empty()) return Invalid("a class without its end");
      any = true;
      if (rest_[0] == '[') return Invalid("a \"[\" in a class");
      const auto [part, first] = OUTRIDER_TRY(ClassPart());
      const bool is_range = rest_.size() > 1 && rest_[0] == '-' && rest_[1] != ']';
      if (!is_range) {
        // XGrammar's \s has only ASCII spaces. The complement of \D or \W has no characters beyond ASCII, but
        // Complement would set `others`.
        if (!first && negated && !negatable_) return Invalid("\\s, \\D or \\W in a negated class");
        characters.ascii |= part.ascii;
        characters.others = characters.others || part.others;
        continue;
      }
      Eat('-');
      const auto last = OUTRIDER_TRY(ClassPart()).second;
      if (!first || !last || *last < *first) return Invalid("a malformed range in a class");
      characters.AddRange(*first, *last);
    }
    if (!any) return Invalid("an empty class");
    return negated ? Complement(characters) : characters;
  }
  absl::StatusOr<std::pair<Characters, std::optional<uint32_t>>> ClassPart() {
    if (rest_.starts_with('\\')) return Escape();
    if (rest_.empty()) return Invalid("a class without its end");
    const uint32_t c = OUTRIDER_TRY(Character());
    return std::pair(Single(c), std::optional(c));
  }

  // Reads an escape. The second value is its character, if it stands for a single one.
  absl::StatusOr<std::pair<Characters, std::optional<uint32_t>>> Escape() {
    Eat('\\');
    if (rest_.empty()) return Invalid("a backslash at its end");
    const char c = rest_[0];
    rest_.remove_prefix(1);
    const auto single = [](uint32_t character) {
      return std::pair(Single(character), std::optional(character));
    };
    if (kPunctuation.find(c) != std::string_view::npos) return single(static_cast<unsigned char>(c));
    negatable_ = c == 'd' || c == 'w';
    Characters set;
    switch (c) {
      case 't':
        return single('\t');
      case 'n':
        return single('\n');
      case 'v':
        return single('\v');
      case 'f':
        return single('\f');
      case 'r':
        return single('\r');
      case 'x':
        return single(OUTRIDER_TRY(Hexadecimal(2)));
      case 'u':
        return single(OUTRIDER_TRY(Hexadecimal(4)));
      case 's':
        set.AddRange('\t', '\r');
        set.AddRange(' ', ' ');
        return std::pair(set, std::nullopt);
      case 'd':
      case 'D':
        set.AddRange('0', '9');
        return std::pair(c == 'd' ? set : Complement(set), std::nullopt);
      case 'w':
      case 'W':
        set.AddRange('0', '9');
        set.AddRange('A', 'Z');
        set.AddRange('a', 'z');
        set.AddRange('_', '_');
        return std::pair(c == 'w' ? set : Complement(set), std::nullopt);
      default:
        return Invalid("\\",
                       absl::string_view(&c, absl::ascii_isgraph(static_cast<unsigned char>(c)) ? 1 : 0));
    }
  }

  absl::StatusOr<uint32_t> Hexadecimal(size_t digits) {
    uint32_t value = 0;
    for (size_t i = 0; i < digits; ++i) {
      const auto c = static_cast<unsigned char>(i < rest_.size() ? rest_[i] : 0);
      if (!absl::ascii_isxdigit(c)) return Invalid("an escape without its ", digits, " digits");
      value = value * 16 +
              static_cast<uint32_t>(absl::ascii_isdigit(c) ? c - '0' : absl::ascii_tolower(c) - 'a' + 10);
    }
    rest_.remove_prefix(digits);
    if (value >= 0xd800 && value < 0xe000) return Invalid("half of a surrogate pair");
    return value;
  }

  std::string_view rest_;
  int nesting_ = 0;
  bool negatable_ = false;  // whether the last escape was a set that a negated class may have
};

}  // namespace

absl::Status CheckJsonPattern(std::string_view pattern) { return PatternChecker(pattern).Check(); }

}  // namespace outrider
