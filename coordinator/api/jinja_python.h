// What the engine does otherwise than Jinja2, without a word: done as Jinja2 does it, or refused with
// std::runtime_error.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/value.h"

namespace outrider {

// What Python's str() makes of a value. It is a client's if any of that is.
jinja::value Printed(const jinja::value& v);

// The operator on these operands, unless the engine does it right: null.
jinja::value PythonOperator(const std::string& op, const jinja::value& left, const jinja::value& right);

// Likewise the filter on an input, or the method of it.
jinja::value PythonFilter(const std::string& name, const jinja::value& input,
                          const std::vector<jinja::value>& arguments);
// Throws for methods that the values of a template do not have.
void CheckPythonMethod(const std::string& name, const jinja::value& input);

// Throws where the engine's test of the input would not be Jinja2's.
void CheckPythonTest(const std::string& name, const jinja::value& input,
                     const std::vector<jinja::value>& arguments);

// Throws for values that Jinja2 writes out as what they are: views and ranges.
void CheckWrittenOut(const std::string& made_by);

// The character of a text at an index, as Python counts; null if there is none.
jinja::value CharacterAt(const jinja::value& text, int64_t index);
// text[start:stop:step].
jinja::value SliceOf(const jinja::value& text, std::optional<int64_t> start, std::optional<int64_t> stop,
                     int64_t step);

enum class StripEnds { kBoth, kLeft, kRight };

// `text`, valid UTF-8, without the characters at its ends that are white space as Python's str.isspace says,
// or, if there are `characters`, one of these.
std::string_view Strip(std::string_view text, StripEnds ends, std::optional<std::string_view> characters);

}  // namespace outrider
