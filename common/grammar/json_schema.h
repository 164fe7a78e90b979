// The part of JSON Schema (draft 2020-12) that XGrammar enforces. XGrammar warns of few of the keywords that
// it ignores, and most of its generators look at one keyword and drop the others.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace outrider {

// The most levels that JSON may be nested. XGrammar takes seconds for a thousand levels.
inline constexpr int kMaxJsonNesting = 64;

// The schema of any object.
inline constexpr char kAnyObject[] = R"({"type":"object","additionalProperties":true})";

// Whether XGrammar's strict mode allows only texts that `schema` validates. If not: INVALID_ARGUMENT about
// the field "grammar", with the keyword and a JSON pointer to it. XGrammar may still refuse the schema, or
// allow fewer texts than it: properties come in the schema's order, and `pattern` is for the whole string.
// Without `lengths`, minLength and maxLength are refused.
absl::Status CheckJsonSchema(const std::string& schema, bool lengths = true);

}  // namespace outrider
