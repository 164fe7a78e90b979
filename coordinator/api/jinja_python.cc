#include "coordinator/api/jinja_program.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <set>
#include <stdexcept>

#include "common/text/utf8.h"

namespace outrider {
namespace {

using jinja::is_val;
using jinja::mk_val;
using jinja::value;
using Text = jinja::value_string;

bool IsNumber(const value& v) { return is_val<jinja::value_int>(v) || is_val<jinja::value_float>(v); }
bool IsList(const value& v) {
  return is_val<jinja::value_array>(v) || dynamic_cast<const jinja::value_tuple_t*>(v.get()) != nullptr;
}
bool IsMapping(const value& v) { return is_val<jinja::value_object>(v); }

bool IsAscii(const value& text) {
  const auto is_ascii = [](char c) { return static_cast<signed char>(c) >= 0; };
  return std::ranges::all_of(text->val_str.parts, [&](const jinja::string_part& part) {
    return std::ranges::all_of(part.val, is_ascii);
  });
}

int64_t CharactersIn(const std::string& text) { return std::ranges::count(text, false, IsContinuation); }

// The byte offset of the character at `index`. The index after the last character gives the text's size.
size_t OffsetOf(const std::string& text, int64_t index) {
  size_t at = 0;
  while (index > 0) {
    ++at;
    if (at == text.size() || !IsContinuation(text[at])) --index;
  }
  return at;
}

// repr() of a float: the shortest digits that read back the same, with an exponent below 1e-4 and from 1e16.
std::string ReprOf(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  const double size = std::abs(number);
  const bool has_exponent = size != 0 && (size < 1e-4 || size >= 1e16);
  std::array<char, 64> digits{};
  const auto format = has_exponent ? std::chars_format::scientific : std::chars_format::fixed;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number, format).ptr;
  const std::string text(digits.data(), end);
  return has_exponent || text.find('.') != text.npos ? text : text + ".0";
}

std::string ReprOf(const std::string& text) {
  const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  std::string repr(1, quote);
  for (const char c : text) {
    constexpr char kHex[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\') {
      repr += {'\\', c};
    } else if (c == '\n') {
      repr += "\\n";
    } else if (c == '\r') {
      repr += "\\r";
    } else if (c == '\t') {
      repr += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      repr += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      repr += c;
    }
  }
  return repr + quote;
}

std::string StrOf(const value& v);

std::string ReprOf(const value& v) {
  if (v->is_undefined()) return "Undefined";
  return IsText(v) ? ReprOf(v->val_str.str()) : StrOf(v);
}

std::string StrOf(const value& v) {
  if (v->is_none()) return "None";
  if (v->is_undefined()) return "";
  if (is_val<jinja::value_float>(v)) return ReprOf(v->val_flt);
  if (IsList(v)) {
    const bool is_tuple = v->is_immutable();
    std::string text = is_tuple ? "(" : "[";
    for (size_t i = 0; i < v->val_arr.size(); ++i) text += (i > 0 ? ", " : "") + ReprOf(v->val_arr[i]);
    if (is_tuple && v->val_arr.size() == 1) text += ",";
    return text + (is_tuple ? ")" : "]");
  }
  if (IsMapping(v)) {
    std::string text = "{";
    for (const auto& [key, element] : v->val_obj) {
      text += (text.size() > 1 ? ", " : "") + ReprOf(key) + ": " + ReprOf(element);
    }
    return text + "}";
  }
  if (IsText(v) || is_val<jinja::value_int>(v) || is_val<jinja::value_bool>(v)) return v->as_string().str();
  throw std::runtime_error("a " + v->type() + " is written out, which is not supported");
}

// The characters for which str.isspace is true.
constexpr std::string_view kWhiteSpace[] = {
    "\t",           "\n",           "\v",           "\f",           "\r",
    "\x1c",         "\x1d",         "\x1e",         "\x1f",         " ",
    "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81",
    "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86",
    "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8",
    "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};

size_t LastCharacterSize(std::string_view text) {
  size_t size = 1;
  while (size < text.size() && IsContinuation(text[text.size() - size])) ++size;
  return size;
}

// A substring search finds whole characters: in UTF-8 none begins in the middle of another.
bool IsStripped(std::string_view character, std::optional<std::string_view> characters) {
  if (characters) return characters->find(character) != characters->npos;
  return std::find(std::begin(kWhiteSpace), std::end(kWhiteSpace), character) != std::end(kWhiteSpace);
}

bool IsBool(const value& v) { return is_val<jinja::value_bool>(v); }

// Whether the values are equal; mappings may differ in order. Looks for each key at its own index first.
bool AreEqual(const value& left, const value& right) {
  constexpr size_t kMostOutOfOrder = 64;
  if (left.get() == right.get()) return true;
  if (IsText(left) && IsText(right)) return left->val_str.str() == right->val_str.str();
  if ((IsNumber(left) || IsBool(left)) && (IsNumber(right) || IsBool(right))) {
    const auto number = [](const value& v) {
      return IsBool(v) ? static_cast<double>(v->as_bool()) : v->as_float();
    };
    return number(left) == number(right);
  }
  if (is_val<jinja::value_undefined>(left) || is_val<jinja::value_undefined>(right)) {
    Refuse("== of lists or mappings with undefined elements");
  }
  if (IsList(left) && IsList(right)) {
    return left->is_immutable() == right->is_immutable() &&
           std::ranges::equal(left->val_arr, right->val_arr, AreEqual);
  }
  if (!IsMapping(left) || !IsMapping(right)) {
    return is_val<jinja::value_none>(left) && is_val<jinja::value_none>(right);
  }
  const auto &members = left->val_obj, &others = right->val_obj;
  if (members.size() != others.size()) return false;
  for (size_t i = 0; i < members.size(); ++i) {
    const auto has_key = [&](const auto& other) { return AreEqual(members[i].first, other.first); };
    auto other = others.begin() + static_cast<std::ptrdiff_t>(i);
    if (!has_key(*other)) {
      if (members.size() > kMostOutOfOrder) Refuse("== of large mappings in different orders");
      other = std::ranges::find_if(others, has_key);
    }
    if (other == others.end() || !AreEqual(members[i].second, other->second)) return false;
  }
  return true;
}

}  // namespace

void Refuse(const std::string& what) { throw std::runtime_error(what + " is not supported"); }

value Printed(const value& v) {
  if (IsText(v)) return v;
  value text = mk_val<Text>(StrOf(v));
  KeepInput(v, text);
  return text;
}

value PythonOperator(const std::string& op, const value& left, const value& right) {
  if (op == "~") {
    value joined = mk_val<Text>(Printed(left)->val_str);
    joined->val_str.append(Printed(right)->val_str);
    return joined;
  }
  const bool are_numbers = IsNumber(left) && IsNumber(right);
  const bool are_lists = IsList(left) && IsList(right);
  if (op == "==" || op == "!=") {
    if (!are_lists && !(IsMapping(left) && IsMapping(right))) return nullptr;
    return mk_val<jinja::value_bool>(AreEqual(left, right) == (op == "=="));
  }
  if (op == "+" && IsText(left) != IsText(right)) Refuse("+ of a text and something else");
  if (op == "+" && are_lists && left->is_immutable() != right->is_immutable())
    Refuse("+ of a list and a tuple");
  if ((op == "/" || op == "%") && are_numbers && right->val_flt == 0)
    throw std::runtime_error("division by zero");
  if (op == "%" && are_numbers && (left->val_flt < 0) != (right->val_flt < 0)) {
    Refuse("% of numbers with different signs");
  }
  int64_t ignored = 0;
  if (is_val<jinja::value_int>(left) && is_val<jinja::value_int>(right)) {
    const bool overflows = (op == "+" && __builtin_add_overflow(left->val_int, right->val_int, &ignored)) ||
                           (op == "-" && __builtin_sub_overflow(left->val_int, right->val_int, &ignored)) ||
                           (op == "*" && __builtin_mul_overflow(left->val_int, right->val_int, &ignored));
    if (overflows) Refuse("a number of more than 64 bits");
  }
  return nullptr;
}

namespace {

value Words(const value& text) {
  constexpr char kSpace[] = " \t\n\r\f\v";
  if (!IsAscii(text)) Refuse("split() of other characters than ASCII");
  const std::string all = text->val_str.str();
  const auto words = mk_val<jinja::value_array>();
  for (size_t begin = all.find_first_not_of(kSpace); begin != all.npos;) {
    const size_t end = std::min(all.find_first_of(kSpace, begin), all.size());
    words->push_back(mk_val<Text>(Slice(text->val_str, begin, end - begin)));
    begin = all.find_first_not_of(kSpace, end);
  }
  return words;
}

// Whether the engine orders `v` as Jinja2 does, which by default compares texts by their lower case.
bool OrdersAsJinja2(const value& v) {
  const std::string text = IsText(v) ? v->val_str.str() : "";
  return !IsText(v) ||
         (IsAscii(v) && std::ranges::none_of(text, [](char c) { return c >= 'A' && c <= 'Z'; }));
}

bool HasWrittenFloat(const value& v) {
  if (is_val<jinja::value_float>(v)) return jinja::value_to_json(v) != ReprOf(v->val_flt);
  return std::ranges::any_of(v->val_arr, HasWrittenFloat) ||
         std::ranges::any_of(v->val_obj, [](const auto& entry) { return HasWrittenFloat(entry.second); });
}

value PythonTextFilter(const std::string& name, const value& text, const std::vector<value>& arguments) {
  static const auto* const of_ascii =
      new std::set<std::string>{"capitalize", "lower", "title", "upper", "islower", "isupper"};
  if (of_ascii->contains(name) && !IsAscii(text)) Refuse(name + " of other characters than ASCII");
  if (name == "length" || (name == "count" && arguments.empty())) {
    return mk_val<jinja::value_int>(CharactersIn(text->val_str.str()));
  }
  if (name == "split" && arguments.empty()) return Words(text);
  if (name == "indent" && text->val_str.length() == 0 && arguments.size() > 1)
    Refuse("indent of an empty text");
  if (name == "title") {
    const std::string all = text->val_str.str();
    const auto is_word = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == ' '; };
    if (!std::ranges::all_of(all, is_word)) Refuse("title of other characters than letters");
  }
  return nullptr;
}

}  // namespace

value PythonFilter(const std::string& name, const value& input, const std::vector<value>& arguments) {
  if (IsText(input)) return PythonTextFilter(name, input, arguments);
  if (name == "string" || name == "safe") return Printed(input);
  const bool is_default = name == "default" || name == "d";
  if (is_default && input->is_none() && arguments.size() == 1) return input;
  if (input->is_none() && (name == "items" || name == "unique")) Refuse(name + " of none");
  if (input->is_undefined() && name == "sum") Refuse("sum of what is not defined");
  if (name == "tojson" && HasWrittenFloat(input)) Refuse("tojson of such a number");
  const bool orders = name == "sort" || name == "min" || name == "max";
  if (orders && !std::ranges::all_of(input->val_arr, OrdersAsJinja2)) Refuse(name + " of capital letters");
  if (orders && IsList(input) && input->is_immutable()) Refuse(name + " of a tuple");
  return nullptr;
}

void CheckPythonMethod(const std::string& name, const value& input) {
  if (input->is_none()) Refuse("a method of none");
  if (name == "join" && !IsText(input)) Refuse("the method join of a list");
  // transformers' sandbox forbids this, too.
  if (name == "append" || name == "pop") Refuse("changing a list");
}

void CheckWrittenOut(const std::string& made_by) {
  static const auto* const views = new std::set<std::string>{"items", "keys", "values", "range", "dictsort"};
  if (views->contains(made_by)) Refuse("writing out what " + made_by + " gives");
}

void CheckPythonTest(const std::string& name, const value& input, const std::vector<value>& arguments) {
  const bool has_two = arguments.size() == 1;
  const bool are_numbers = has_two && IsNumber(input) && IsNumber(arguments[0]);
  const bool are_texts = has_two && IsText(input) && IsText(arguments[0]);
  const bool compares = name == "lt" || name == "gt" || name == "ne" || name == "ge" || name == "le";
  if (compares && !are_numbers && !are_texts) Refuse("the test " + name + " of values of different kinds");
  if (name == "number" && is_val<jinja::value_bool>(input)) Refuse("the test number of true or false");
  if ((name == "sequence" || name == "iterable") && IsMapping(input))
    Refuse("the test " + name + " of a mapping");
  if (name == "callable") Refuse("the test callable");
  if ((name == "lower" || name == "upper") && IsText(input)) {
    const std::string text = input->val_str.str();
    const auto is_letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; };
    if (!IsAscii(input) || std::ranges::none_of(text, is_letter)) {
      Refuse("the test " + name + " of other characters than letters of ASCII");
    }
  }
}

value CharacterAt(const value& text, int64_t index) {
  const std::string all = text->val_str.str();
  const int64_t count = CharactersIn(all);
  if (index < 0) index += count;
  if (index < 0 || index >= count) return nullptr;
  const size_t begin = OffsetOf(all, index);
  return mk_val<Text>(Slice(text->val_str, begin, OffsetOf(all, index + 1) - begin));
}

value SliceOf(const value& text, std::optional<int64_t> start, std::optional<int64_t> stop, int64_t step) {
  const std::string all = text->val_str.str();
  const int64_t count = CharactersIn(all);
  if (step != 1 && (step != -1 || start || stop || !IsAscii(text))) Refuse("a slice of a text with steps");
  if (step == -1) {
    const value reversed = mk_val<Text>(std::string(all.rbegin(), all.rend()));
    KeepInput(text, reversed);
    return reversed;
  }
  const auto bounded = [count](int64_t bound) {
    return std::clamp<int64_t>(bound < 0 ? bound + count : bound, 0, count);
  };
  const int64_t first = bounded(start.value_or(0)), last = bounded(stop.value_or(count));
  if (first >= last) return mk_val<Text>(jinja::string());
  const size_t begin = OffsetOf(all, first);
  return mk_val<Text>(Slice(text->val_str, begin, OffsetOf(all, last) - begin));
}

std::string_view Strip(std::string_view text, StripEnds ends, std::optional<std::string_view> characters) {
  while (ends != StripEnds::kRight && !text.empty()) {
    const std::string_view first = text.substr(0, CharacterSize(text));
    if (!IsStripped(first, characters)) break;
    text.remove_prefix(first.size());
  }
  while (ends != StripEnds::kLeft && !text.empty()) {
    const std::string_view last = text.substr(text.size() - LastCharacterSize(text));
    if (!IsStripped(last, characters)) break;
    text.remove_suffix(last.size());
  }
  return text;
}

}  // namespace outrider
