// What llama.cpp's Jinja engine lacks for chat templates, which come with a model: limits; which texts of a
// rendering come from clients; and Jinja2's own behaviour.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/lexer.h"
#include "jinja/runtime.h"
#include "jinja/value.h"

namespace outrider {

// Throws std::runtime_error for a template that is larger, or nests deeper, than the parser's stack allows.
void CheckTokens(const std::string& source, const jinja::lexer_result& tokens);

// The limits of one rendering: the engine has none. Replaces the nodes of a program by those that count
// steps, sizes of values, and nested calls, and throw jinja::raised_exception. One thread.
class JinjaLimits {
 public:
  // The program must not be used after this object is gone.
  void Bound(jinja::program* program);
  // Replaces those parts of `context` that cannot be bounded from outside.
  void Bound(jinja::context* context);

  // For the nodes.
  [[noreturn]] static void Fail(const std::string& what) {
    throw jinja::raised_exception("the chat template does not come to an end: " + what);
  }
  void Spend(uint64_t work);
  void SpendStep() { Spend(step_); }
  // Charges for a walk over the whole value. Parts that are shared count each time.
  void Measure(const jinja::value& value, int depth = 0);
  // Call before a function or filter is called. `input` may be null.
  void CheckCall(const std::string& name, const jinja::value& input,
                 const std::vector<jinja::value>& arguments);
  // Call before `value` becomes a part of `container`; ensures that no container contains itself.
  void CheckInsert(const jinja::value& container, const jinja::value& value, int depth = 0);
  int& calls() { return calls_; }

 private:
  uint64_t work_ = 0;
  uint64_t step_ = 0;  // cost of one step
  int calls_ = 0;
};

// Replaces the nodes of a body by those that keep to the limits. Returns how many names it can set.
uint64_t BoundNodes(jinja::statements& body, JinjaLimits* limits);

// Which texts come from clients, and which from the template. The engine marks the input and follows it
// through most operations; this covers the rest.
bool IsText(const jinja::value& v);

void MarkInput(const jinja::value& v);

// Call after `result` was made of `from`. A text whose origin the engine has lost counts as a client's if any
// text in `from` was. For results that are new, not parts of `from`.
void KeepInput(const jinja::value& from, const jinja::value& result);

// Returns `size` bytes of a text from `begin` on. Each part keeps its origin.
jinja::string Slice(const jinja::string& text, size_t begin, size_t size);

// Where the engine silently differs from Jinja2: does what Jinja2 does, or refuses with std::runtime_error.

[[noreturn]] void Refuse(const std::string& what);  // "... is not supported"

// Python's str() of a value. The text is a client's if any part of the value is.
jinja::value Printed(const jinja::value& v);

// Applies the operator to these operands; null if the engine does it right.
jinja::value PythonOperator(const std::string& op, const jinja::value& left, const jinja::value& right);

// The same for a filter on an input, or a method of it.
jinja::value PythonFilter(const std::string& name, const jinja::value& input,
                          const std::vector<jinja::value>& arguments);
// Throws for methods that the values of a template do not have.
void CheckPythonMethod(const std::string& name, const jinja::value& input);

// Throws where the engine's test of the input would differ from Jinja2's.
void CheckPythonTest(const std::string& name, const jinja::value& input,
                     const std::vector<jinja::value>& arguments);

// Throws for views and ranges, which Jinja2 writes out as such.
void CheckWrittenOut(const std::string& made_by);

// The character of a text at an index, as Python counts; null if there is none.
jinja::value CharacterAt(const jinja::value& text, int64_t index);
// text[start:stop:step].
jinja::value SliceOf(const jinja::value& text, std::optional<int64_t> start, std::optional<int64_t> stop,
                     int64_t step);

enum class StripEnds { kBoth, kLeft, kRight };

// `text`, valid UTF-8, without what str.isspace or, if given, `characters` has at its ends.
std::string_view Strip(std::string_view text, StripEnds ends, std::optional<std::string_view> characters);

}  // namespace outrider
