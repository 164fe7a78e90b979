// Which texts of a rendering come from clients, and which from the template. The engine marks the input and
// follows it through most operations; this covers the rest.
#pragma once

#include <cstddef>

#include "jinja/value.h"

namespace outrider {

bool IsText(const jinja::value& v);

// Marks the texts in a value as a client's.
void MarkInput(const jinja::value& v);

// Call after `result` was made of `from`. A text whose origin the engine has lost counts as a client's if any
// text in `from` was. For results that are new, not parts of `from`.
void KeepInput(const jinja::value& from, const jinja::value& result);

// Returns `size` bytes of a text from `begin` on. Each part keeps its origin.
jinja::string Slice(const jinja::string& text, size_t begin, size_t size);

}  // namespace outrider
