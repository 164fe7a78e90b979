#include "coordinator/openai/grammar_fields.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/grammar/json_schema.h"
#include "common/text/json.h"

namespace outrider {
namespace {

using Json = OrderedJson;  // an answer has the properties in the schema's order

constexpr char kStructuredOutputs[] = "structured_outputs";

// The form in which a field gives its grammar.
struct Form {
  const char* allowed;
  // Sets the grammar from the field's value, or leaves it empty if the value asks for none. Returns false if
  // the value is not of this form.
  bool (*read)(const Json& value, v1::Grammar* grammar);
};

bool ReadSchema(const Json& value, v1::Grammar* grammar) {
  if (!value.is_object() && !value.is_string()) return false;
  grammar->set_json_schema(value.is_string() ? value.get<std::string>() : DumpJson(value));
  return true;
}

bool ReadStructuralTag(const Json& value, v1::Grammar* grammar) {
  if (!value.is_object() && !value.is_string()) return false;
  grammar->set_structural_tag(value.is_string() ? value.get<std::string>() : DumpJson(value));
  return true;
}

bool ReadRegex(const Json& value, v1::Grammar* grammar) {
  if (!value.is_string()) return false;
  grammar->set_regex(value.get<std::string>());
  return true;
}

bool ReadEbnf(const Json& value, v1::Grammar* grammar) {
  if (!value.is_string()) return false;
  grammar->set_ebnf(value.get<std::string>());
  return true;
}

bool ReadChoices(const Json& value, v1::Grammar* grammar) {
  if (!value.is_array()) return false;
  v1::Grammar::Choices* const choices = grammar->mutable_choices();
  for (const Json& text : value) {
    if (!text.is_string()) return false;
    choices->add_texts(text.get<std::string>());
  }
  return true;
}

bool ReadJsonObject(const Json& value, v1::Grammar* grammar) {
  if (!value.is_boolean()) return false;
  if (value.get<bool>()) grammar->set_json_schema(kAnyObject);
  return true;
}

bool ReadResponseFormat(const Json& value, v1::Grammar* grammar) {
  if (!value.is_object()) return false;
  const Json type = value.value("type", Json());
  const Json* holder = &value;
  if (type == "text") return true;
  if (type == "structural_tag") return ReadStructuralTag(value, grammar);
  if (type == "json_schema") {
    const auto named = value.find("json_schema");
    if (named == value.end() || !named->is_object()) return false;
    holder = &*named;
  } else if (type != "json_object") {
    return false;
  }
  // llama-server takes a schema with json_object, too.
  const auto schema = holder->find("schema");
  const bool is_missing = schema == holder->end() || schema->is_null();
  if (is_missing && type == "json_object") return ReadJsonObject(true, grammar);
  return !is_missing && schema->is_object() && ReadSchema(*schema, grammar);
}

constexpr Form kResponseFormat = {
    R"({"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": an object}} or )"
    R"({"type": "structural_tag", ...})",
    ReadResponseFormat};
constexpr Form kSchema = {"a JSON Schema, as an object or its text", ReadSchema};
constexpr Form kStructuralTag = {"a structural tag, as an object or its text", ReadStructuralTag};
constexpr Form kRegex = {"a string", ReadRegex};
constexpr Form kEbnf = {"a string", ReadEbnf};
constexpr Form kChoices = {"a list of strings", ReadChoices};
constexpr Form kJsonObject = {"true or false", ReadJsonObject};

struct Field {
  const char* name;
  const Form* form;
};
constexpr Field kFields[] = {
    {"response_format", &kResponseFormat},
    {"guided_json", &kSchema},
    {"guided_regex", &kRegex},
    {"guided_choice", &kChoices},
    {"guided_grammar", &kEbnf},
    {"structural_tag", &kStructuralTag},
    {"grammar", &kEbnf},
    {"json_schema", &kSchema},
};
// Members of structured_outputs.
constexpr Field kMembers[] = {
    {"json", &kSchema},
    {"regex", &kRegex},
    {"choice", &kChoices},
    {"grammar", &kEbnf},
    {"json_object", &kJsonObject},
    {"structural_tag", &kStructuralTag},
};

// Reads the grammar, which only one field may have.
class GrammarReader {
 public:
  GrammarReader(JsonFields& fields, v1::SamplingParams* sampling) : fields_(fields), sampling_(sampling) {}

  // `value` is not null.
  void Read(const std::string& name, const Form& form, const Json& value) {
    v1::Grammar grammar;
    if (!form.read(value, &grammar)) {
      return fields_.Refuse(name.c_str(), form.allowed, Shown(nlohmann::json(value)));
    }
    if (grammar.form_case() == v1::Grammar::FORM_NOT_SET) return;
    if (!field_.empty()) {
      return fields_.Refuse(name.c_str(), absl::StrCat("one of ", field_, " and ", name), "a second grammar");
    }
    field_ = name;
    *sampling_->mutable_grammar() = std::move(grammar);
  }

  // Ignores unknown members that are null or false, and refuses the others.
  void ReadStructuredOutputs(const Json& value) {
    if (!value.is_object())
      return fields_.Refuse(kStructuredOutputs, "an object", Shown(nlohmann::json(value)));
    for (const auto& [member, inner] : value.items()) {
      // There is no other engine to fall back to.
      if (inner.is_null() || member == "disable_fallback") continue;
      const std::string name = absl::StrCat(kStructuredOutputs, ".", member);
      const auto* const known = std::ranges::find(kMembers, member, &Field::name);
      if (known != std::end(kMembers)) {
        Read(name, *known->form, inner);
      } else if (inner != Json(false)) {
        fields_.Fail(MakeError(absl::StatusCode::kInvalidArgument, "UNSUPPORTED_PARAMETER",
                               absl::StrCat(name, ": not supported"), {{"field", name}}));
      }
    }
  }

  const std::string& field() const { return field_; }

 private:
  JsonFields& fields_;
  v1::SamplingParams* const sampling_;
  std::string field_;  // the field that had a grammar
};

}  // namespace

std::string ParseGrammarFields(JsonFields& fields, v1::SamplingParams* sampling) {
  std::vector<const char*> present;
  for (const Field& field : kFields) {
    if (fields.Find(field.name) != nullptr) present.push_back(field.name);
  }
  if (fields.Find(kStructuredOutputs) != nullptr) present.push_back(kStructuredOutputs);
  if (present.empty()) return "";
  const Json* const json = fields.InOrder(present[0]);
  if (json == nullptr) return "";
  GrammarReader reader(fields, sampling);
  for (const Field& field : kFields) {
    if (fields.Find(field.name) != nullptr) reader.Read(field.name, *field.form, json->at(field.name));
  }
  if (present.back() == kStructuredOutputs) reader.ReadStructuredOutputs(json->at(kStructuredOutputs));
  return reader.field();
}

}  // namespace outrider
