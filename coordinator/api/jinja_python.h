// Where the engine silently differs from Jinja2: does what Jinja2 does, or refuses with std::runtime_error.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/value.h"

namespace outrider {

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

// `text`, valid UTF-8, without the characters at its ends that are white space by Python's str.isspace or, if
// `characters` is given, that are among these.
std::string_view Strip(std::string_view text, StripEnds ends, std::optional<std::string_view> characters);

}  // namespace outrider
