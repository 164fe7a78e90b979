#include "coordinator/api/jinja_program.h"

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <utility>

namespace outrider {
namespace {

using jinja::token;
using jinja::value;

constexpr size_t kMaxSource = 256 << 10;
constexpr int kMaxNesting = 100;  // of brackets and of blocks, together
constexpr int kMaxTokens = 1000;  // in one expression or tag: a chain of operators becomes a tree as deep
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
constexpr uint64_t kMaxWork = 20'000;  // else most of a fuzzer's time goes into loops
#else
constexpr uint64_t kMaxWork = 5'000'000;  // about a second
#endif
constexpr uint64_t kStepWork = 50;  // a step takes as long as a walk over this many values
constexpr uint64_t kBytesPerWork = 16;
constexpr uint64_t kMaxString = 16 << 20;
constexpr uint64_t kMaxMoved = uint64_t{1}
                               << 33;  // bytes moved by functions that move the remaining text at each match
constexpr int kMaxValueDepth = 64;
constexpr int64_t kMaxRange = 100'000;
constexpr size_t kMaxInsertionSort = 16;  // std::sort is safe up to here even with an inconsistent order

// Tracks how deep open blocks nest in the parser. After returns the depth after a tag of that name.
class BlockDepth {
 public:
  int After(const std::string& name) {
    if (name == "if" || name == "for" || name == "macro" || name == "call" || name == "filter" ||
        name == "set") {
      outer_.push_back(depth_++);
    } else if (name == "elif") {
      ++depth_;
    } else if (name.starts_with("end")) {
      Leave();
    }
    return depth_;
  }
  // Ends the innermost block. Call it also for a `set` with a value, which has no end tag.
  void Leave() {
    if (outer_.empty()) return;
    depth_ = outer_.back();
    outer_.pop_back();
  }

 private:
  std::vector<int> outer_;
  int depth_ = 0;
};

uint64_t Bytes(const value& text) { return text->val_str.length(); }

uint64_t CountMatches(const std::string& text, const std::string& what) {
  if (what.empty()) return text.size();
  uint64_t count = 0;
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + what.size())) ++count;
  return count;
}

// Whether std::sort can rely on the engine's comparison.
bool HaveOneOrder(const std::vector<value>& values) {
  const auto all = [&](auto is) { return std::all_of(values.begin(), values.end(), is); };
  return values.size() <= kMaxInsertionSort || all(IsText) ||
         all([](const value& v) { return jinja::is_val<jinja::value_int>(v); });
}

value BoundedRange(const jinja::func_args& arguments) {
  const auto at = [&](size_t i) { return static_cast<double>(arguments.get_args()[i]->val_int); };
  const size_t count = arguments.count();
  if (count >= 1 && count <= 3) {
    const double first = count == 1 ? 0 : at(0);
    const double last = count == 1 ? at(0) : at(1);
    const double step = count == 3 ? at(2) : 1;
    if (step != 0 && (last - first) / step > static_cast<double>(kMaxRange)) {
      JinjaLimits::Fail("a range of more than " + std::to_string(kMaxRange) + " numbers");
    }
  }
  return jinja::global_builtins().at("range")(arguments);
}

bool HasInput(const jinja::value& v) {
  const auto is_input = [](const jinja::string_part& part) { return part.is_input; };
  return std::ranges::any_of(v->val_str.parts, is_input) || std::ranges::any_of(v->val_arr, HasInput) ||
         std::ranges::any_of(v->val_obj, [](const auto& entry) { return HasInput(entry.second); });
}

// Throws for syntax that the engine reads differently from Jinja2.
void CheckNames(const std::vector<token>& tokens, size_t i) {
  if (tokens[i].t != token::identifier || i == 0) return;
  const std::string& name = tokens[i].value;
  if (tokens[i - 1].t == token::numeric_literal && (name[0] == 'e' || name[0] == 'E') && name != "else") {
    Refuse("a number with an exponent");
  }
  const bool is_ours = name != "lipsum" && name != "cycler" && name != "joiner" && name != "self";
  if (!is_ours && tokens[i - 1].t != token::dot) Refuse(name);
}

}  // namespace

void CheckTokens(const std::string& source, const jinja::lexer_result& tokens) {
  if (source.size() > kMaxSource) throw std::runtime_error("the template is larger than 256 KiB");
  BlockDepth blocks;
  int brackets = 0, size = 0, depth = 0;
  bool is_set = false;
  for (size_t i = 0; i < tokens.tokens.size(); ++i) {
    ++size;
    switch (tokens.tokens[i].t) {
      case token::open_statement:
        if (i + 1 < tokens.tokens.size()) {
          depth = blocks.After(tokens.tokens[i + 1].value);
          is_set = tokens.tokens[i + 1].value == "set";
        }
        [[fallthrough]];
      case token::open_expression:
        size = brackets = 0;
        break;
      case token::equals:
        if (std::exchange(is_set, false) && brackets == 0) blocks.Leave();
        break;
      case token::open_paren:
      case token::open_square_bracket:
      case token::open_curly_bracket:
        ++brackets;
        break;
      case token::close_paren:
      case token::close_square_bracket:
      case token::close_curly_bracket:
        --brackets;
        break;
      default:
        break;
    }
    CheckNames(tokens.tokens, i);
    if (size > kMaxTokens)
      throw std::runtime_error("an expression of the template has more than 1000 tokens");
    if (brackets + depth > kMaxNesting) throw std::runtime_error("the template nests more than 100 deep");
  }
}

void JinjaLimits::Bound(jinja::program* program) {
  // Each turn of a loop, and each call, copies all variables, so they add to the cost of a step.
  step_ = kStepWork + BoundNodes(program->body, this);
}

void JinjaLimits::Bound(jinja::context* context) {
  context->set_val("range", jinja::mk_val<jinja::value_func>("range", BoundedRange));
}

void JinjaLimits::Spend(uint64_t work) {
  work_ += work;
  if (work_ > kMaxWork) Fail("it takes too many steps, or too much memory");
}

void JinjaLimits::Measure(const value& v, int depth) {
  if (depth > kMaxValueDepth) Fail("its values nest too deep");
  Spend(1);
  if (IsText(v)) {
    if (Bytes(v) > kMaxString) Fail("it makes a text of more than 16 MiB");
    Spend(Bytes(v) / kBytesPerWork + v->val_str.parts.size());
  }
  for (const value& element : v->val_arr) Measure(element, depth + 1);
  for (const auto& [key, element] : v->val_obj) {
    Measure(key, depth + 1);
    Measure(element, depth + 1);
  }
  if (const auto* named = jinja::cast_val<std::shared_ptr<jinja::value_kwarg_t>>(v))
    Measure(named->val, depth + 1);
}

void JinjaLimits::CheckInsert(const value& container, const value& v, int depth) {
  if (v == container || depth > kMaxValueDepth) Fail("a value contains itself");
  Spend(1);
  for (const value& element : v->val_arr) CheckInsert(container, element, depth + 1);
  for (const auto& [key, element] : v->val_obj) CheckInsert(container, element, depth + 1);
}

void JinjaLimits::CheckCall(const std::string& name, const value& input,
                            const std::vector<value>& arguments) {
  // divisibleby can divide by zero, which ends the process. `select` and the like call it by its name.
  if (name == "divisibleby") Refuse("divisibleby");
  uint64_t argument_bytes = 1;
  for (const value& argument : arguments) {
    Measure(argument);
    if (IsText(argument) && argument->val_str.str() == "divisibleby") Refuse("divisibleby");
    const auto* named = jinja::cast_val<std::shared_ptr<jinja::value_kwarg_t>>(argument);
    const value& given = named == nullptr ? argument : named->val;
    argument_bytes += Bytes(given);
    // The number may be a count of spaces to indent by.
    const bool is_number = jinja::is_val<jinja::value_int>(given);
    if (is_number && (name == "indent" || name == "tojson" || name == "string" || name == "safe")) {
      argument_bytes += static_cast<uint64_t>(std::max<int64_t>(given->val_int, 0));
    }
  }
  if (input == nullptr) return;
  const uint64_t before = work_;
  Measure(input);
  const uint64_t size = (work_ - before) * kBytesPerWork;  // bytes of its texts, rounded up
  const bool multiplies = name == "replace" || name == "join" || name == "indent" || name == "tojson" ||
                          name == "format" || name == "string" || name == "safe";
  if (multiplies && argument_bytes > kMaxString / std::max<uint64_t>(size, 1) && argument_bytes > 64) {
    Fail("it makes a text of more than 16 MiB");
  }
  const bool moves = name == "replace" || name == "split" || name == "rsplit";
  if (moves && IsText(input)) {
    const std::string text = input->val_str.str();
    const std::string what = arguments.empty() || !IsText(arguments[0]) ? " " : arguments[0]->val_str.str();
    if (CountMatches(text, what) * text.size() > kMaxMoved) Fail(name + " has too much to do");
  }
  if (name == "sort" && !HaveOneOrder(input->val_arr))
    throw std::runtime_error("sort of values of several kinds");
  const bool is_long = input->val_obj.size() > kMaxInsertionSort;
  if (name == "dictsort" && is_long) Refuse("dictsort of more than 16 entries");
}

bool IsText(const jinja::value& v) { return jinja::is_val<jinja::value_string>(v); }

void MarkInput(const jinja::value& v) {
  if (IsText(v)) v->val_str.mark_input();
  for (const jinja::value& element : v->val_arr) MarkInput(element);
  for (const auto& [key, element] : v->val_obj) MarkInput(element);
}

void KeepInput(const jinja::value& from, const jinja::value& result) {
  const bool is_list = jinja::is_val<jinja::value_array>(result);
  if ((!IsText(result) && !is_list) || !HasInput(from)) return;
  if (IsText(result) && !HasInput(result)) result->val_str.mark_input();
  for (const jinja::value& element : result->val_arr) {
    if (IsText(element) && !HasInput(element)) element->val_str.mark_input();
  }
}

jinja::string Slice(const jinja::string& text, size_t begin, size_t size) {
  jinja::string slice;
  for (const jinja::string_part& part : text.parts) {
    const size_t skipped = std::min(begin, part.val.size());
    const size_t taken = std::min(size, part.val.size() - skipped);
    if (taken > 0) slice.parts.push_back({part.is_input, part.val.substr(skipped, taken)});
    begin -= skipped;
    size -= taken;
  }
  return slice;
}

}  // namespace outrider
