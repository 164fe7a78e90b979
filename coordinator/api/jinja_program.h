// Adds what llama.cpp's Jinja engine lacks for chat templates, which come with a model and are not trusted:
// limits, the origin of each text (a client or the template), and Jinja2's own behaviour.
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

// Throws std::runtime_error for a template that is too large or deep for the parser, or that it misreads.
void CheckTokens(const std::string& source, const jinja::lexer_result& tokens);

// Limits one rendering; the engine itself has no limits. Replaces the nodes of a program by nodes that count
// steps, sizes of values and nested calls, and throw jinja::raised_exception beyond a limit. One thread.
class JinjaLimits {
 public:
  // The program must not be used after this object is gone.
  void Bound(jinja::program* program);
  // Replaces the builtins of `context` that cannot be bounded from outside.
  void Bound(jinja::context* context);

  // Called by the nodes.
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

// Replaces the nodes of a body by nodes that keep to the limits. Returns how many variables the body can set.
uint64_t BoundNodes(jinja::statements& body, JinjaLimits* limits);

// The next functions tell clients' texts from the template's. The engine marks clients' texts as input and
// keeps the marks in most operations; these functions cover the others.
bool IsText(const jinja::value& v);

void MarkInput(const jinja::value& v);

// Call after `result` was computed from `from`, as a new value and not a part of it. A text whose origin the
// engine has lost counts as a client's if any text in `from` is a client's.
void KeepInput(const jinja::value& from, const jinja::value& result);

// Returns `size` bytes of a text from `begin` on. Each part keeps its origin.
jinja::string Slice(const jinja::string& text, size_t begin, size_t size);

// The next functions mend silent differences from Jinja2: they do as it does, or throw std::runtime_error.

[[noreturn]] void Refuse(const std::string& what);  // "... is not supported"

// Python's str() of a value. The text is a client's if any part of the value is.
jinja::value Printed(const jinja::value& v);

// Applies the operator to the operands. Returns null if the engine does that right.
jinja::value PythonOperator(const std::string& op, const jinja::value& left, const jinja::value& right);

// Applies a filter to `input`, or calls its method of that name. Returns null if the engine does that right.
jinja::value PythonFilter(const std::string& name, const jinja::value& input,
                          const std::vector<jinja::value>& arguments);
// Throws for a method that `input` does not have in transformers' sandbox of Jinja2.
void CheckPythonMethod(const std::string& name, const jinja::value& input);

// Throws where the engine's test of the input would differ from Jinja2's.
void CheckPythonTest(const std::string& name, const jinja::value& input,
                     const std::vector<jinja::value>& arguments);

// Throws if `made_by` is a function or filter whose result Jinja2 writes out differently, such as a view.
void CheckWrittenOut(const std::string& made_by);

// The character of a text at an index, as Python counts; null if there is none.
jinja::value CharacterAt(const jinja::value& text, int64_t index);
// text[start:stop:step].
jinja::value SliceOf(const jinja::value& text, std::optional<int64_t> start, std::optional<int64_t> stop,
                     int64_t step);

enum class StripEnds { kBoth, kLeft, kRight };

// Strips `characters`, or by default those of str.isspace, from the ends of `text`, which is valid UTF-8.
std::string_view Strip(std::string_view text, StripEnds ends, std::optional<std::string_view> characters);

}  // namespace outrider
