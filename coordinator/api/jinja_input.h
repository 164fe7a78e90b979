// Which texts of a rendering clients wrote, and which the template did. The engine marks what goes in and
// follows it through most of what it does; this is the rest.
#pragma once

#include <cstddef>

#include "jinja/value.h"

namespace outrider {

bool IsText(const jinja::value& v);

// Marks the texts in a value as a client's.
void MarkInput(const jinja::value& v);

// After `result` was made of `from`: a text of which the engine no longer knows whose it is counts as a
// client's if any of that was. For results that are new, not parts of `from`.
void KeepInput(const jinja::value& from, const jinja::value& result);

// `size` bytes of a text from `begin` on. Each part stays whose it was.
jinja::string Slice(const jinja::string& text, size_t begin, size_t size);

}  // namespace outrider
