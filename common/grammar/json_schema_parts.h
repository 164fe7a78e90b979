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

// Parses `text`. INVALID_ARGUMENT about "grammar" if it is not JSON or nests deeper than kMaxJsonNesting.
absl::StatusOr<Json> ParseNested(const std::string& text);

// Whether `value` is of a type of JSON Schema. `type` must be one of its names.
bool HasType(const Json& value, absl::string_view type);

// The names of the schema's types, if it has any and they are well formed.
std::vector<std::string> TypesOf(const Json& schema);

// Texts that identify a schema: one as XGrammar compares schemas, one by all that affects validation.
std::string XGrammarIdentity(const Json& schema);
std::string SchemaIdentity(const Json& schema);

// Resolves the references in a schema. The schema must outlive this.
class SchemaReferences {
 public:
  explicit SchemaReferences(const Json& root) : root_(root) {}

  // The schema that a reference points to; null if XGrammar finds another one or none.
  const Json* Target(const Json& reference) const;
  // Whether `schema` applies itself to the same value again, by references. Such a schema has no meaning.
  bool IsSelfReferential(const Json& schema);
  // Whether XGrammar allows only strings for the schema. Looks at most `depth` references or subschemas deep.
  bool HasOnlyStrings(const Json& schema, int depth) const;

 private:
  const Json& root_;
  std::set<const Json*> within_, known_;  // for IsSelfReferential: in progress, and done
};

}  // namespace outrider
