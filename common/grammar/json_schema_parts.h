// Parts of a JSON Schema, as XGrammar and as the specification see them.
#pragma once

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace outrider {

using Json = nlohmann::json;

template <class List>
bool IsAmong(absl::string_view word, const List& list) {
  return std::ranges::find(list, word) != std::end(list);
}

// INVALID_ARGUMENT of the field "grammar" for text that is no JSON or nests deeper than kMaxJsonNesting.
absl::StatusOr<Json> ParseNested(const std::string& text);

// `type` is one that there is.
bool HasType(const Json& value, absl::string_view type);

// The names of the schema's types, if it has any and they are well formed.
std::vector<std::string> TypesOf(const Json& schema);

// The text by which XGrammar tells schemas apart, and one that says all that validates.
std::string XGrammarIdentity(const Json& schema);
std::string SchemaIdentity(const Json& schema);

// What the references of a schema are to. The schema must outlive this.
class SchemaReferences {
 public:
  explicit SchemaReferences(const Json& root) : root_(root) {}

  // The schema that a reference is to; null if XGrammar finds another or none.
  const Json* Target(const Json& reference) const;
  // Whether what is said of a value by `schema` says it by itself again: this has no meaning.
  bool ComesBack(const Json& schema);
  // Whether all that XGrammar takes from the schema are strings. Looks `depth` references deep.
  bool HasOnlyStrings(const Json& schema, int depth) const;

 private:
  const Json& root_;
  std::set<const Json*> within_, known_;  // by ComesBack
};

}  // namespace outrider
