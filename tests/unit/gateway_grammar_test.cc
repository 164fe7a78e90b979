// The fields of the OpenAI API that constrain an answer by a grammar.
#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/spec/status.h"
#include "openai_request_testing.h"

namespace outrider {
namespace {

using ::testing::HasSubstr;

// The grammar of a request, and the field that it came with.
std::string GrammarOf(const absl::StatusOr<OpenAiRequest>& request) {
  if (!request.ok()) return request.status().ToString();
  if (!request->common.sampling().has_grammar())
    return request->grammar_field.empty() ? "none" : "a name only";
  const v1::Grammar& grammar = request->common.sampling().grammar();
  switch (grammar.form_case()) {
    case v1::Grammar::kJsonSchema:
      return request->grammar_field + " schema " + grammar.json_schema();
    case v1::Grammar::kRegex:
      return request->grammar_field + " regex " + grammar.regex();
    case v1::Grammar::kEbnf:
      return request->grammar_field + " ebnf " + grammar.ebnf();
    case v1::Grammar::kChoices:
      return request->grammar_field + " choices " + absl::StrJoin(grammar.choices().texts(), "|");
    case v1::Grammar::kStructuralTag:
      return request->grammar_field + " tag " + grammar.structural_tag();
    case v1::Grammar::FORM_NOT_SET:
      break;
  }
  return "an empty grammar";
}

TEST(OpenAiGrammar, TakesAGrammarInEachForm) {
  for (
      const auto& [field, grammar] : std::vector<std::pair<std::string, std::string>>{
          {R"("response_format": {"type": "text"})", "none"},
          {R"("response_format": {"type": "json_object"})",
           R"(response_format schema {"type":"object","additionalProperties":true})"},
          {R"("response_format": {"type": "json_object", "schema": {"type": "array"}})",
           R"(response_format schema {"type":"array"})"},
          {R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": null, "schema": {}}})",
           "response_format schema {}"},
          {R"("response_format": {"type": "structural_tag", "format": {"a": 1}})",
           R"(response_format tag {"type":"structural_tag","format":{"a":1}})"},
          {R"("structured_outputs": {"json": {"type": "null"}})",
           R"(structured_outputs.json schema {"type":"null"})"},
          {R"("structured_outputs": {"json": "{\"type\": \"null\"}"})",
           R"(structured_outputs.json schema {"type": "null"})"},
          {R"("structured_outputs": {"regex": "a+", "json": null, "disable_any_whitespace": false,
               "disable_fallback": true, "whitespace_pattern": null})",
           "structured_outputs.regex regex a+"},
          {R"("structured_outputs": {"choice": ["yes", "no"]})", "structured_outputs.choice choices yes|no"},
          {R"("structured_outputs": {"grammar": "root ::= \"a\""})",
           R"(structured_outputs.grammar ebnf root ::= "a")"},
          {R"("structured_outputs": {"json_object": true})",
           R"(structured_outputs.json_object schema {"type":"object","additionalProperties":true})"},
          {R"("structured_outputs": {"json_object": false})", "none"},
          {R"("structured_outputs": {"structural_tag": {"type": "structural_tag"}})",
           R"(structured_outputs.structural_tag tag {"type":"structural_tag"})"},
          {R"("structured_outputs": {"structural_tag": "{}"})", "structured_outputs.structural_tag tag {}"},
          {R"("guided_json": {"type": "null"})", R"(guided_json schema {"type":"null"})"},
          {R"("guided_json": "{}")", "guided_json schema {}"},
          {R"("guided_regex": "a\\d")", R"(guided_regex regex a\d)"},
          {R"("guided_choice": ["a", "b"])", "guided_choice choices a|b"},
          {R"("guided_choice": [])", "guided_choice choices "},  // left to the service to refuse
          {R"("guided_grammar": "root ::= [a-z]")", "guided_grammar ebnf root ::= [a-z]"},
          {R"("structural_tag": "{}")", "structural_tag tag {}"},
          {R"("grammar": "root ::= [a-z]")", "grammar ebnf root ::= [a-z]"},
          {R"("json_schema": {"type": "null"})", R"(json_schema schema {"type":"null"})"},
          {R"("response_format": {"type": "text"}, "guided_regex": "a", "guided_json": null)",
           "guided_regex regex a"},
      }) {
    EXPECT_EQ(GrammarOf(Completions(field)), grammar) << field;
    EXPECT_EQ(GrammarOf(Chat(field)), grammar) << field;
  }
}

TEST(OpenAiGrammar, KeepsTheOrderOfASchemasProperties) {
  const std::string schema = R"({"properties":{"z\"}":{"const":1.5},"a":{"enum":["]",12]}},"type":"object"})";
  EXPECT_EQ(GrammarOf(Chat(R"("response_format": {"type": "json_schema", "json_schema": {"schema" : )" +
                           schema + R"(, "name": "n"}})")),
            "response_format schema " + schema);
  EXPECT_EQ(GrammarOf(Chat(R"("structured\u005foutputs": { "json":)" + schema + "\n}")),
            "structured_outputs.json schema " + schema);
  EXPECT_EQ(GrammarOf(Chat(R"("guided_json": {"first": 1}, "guided_json": )" + schema)),
            "guided_json schema " + schema)
      << "the last, as of every field";
  // Large objects are refused, since each lookup in an ordered object is a linear search.
  std::string members;
  for (int i = 0; i < 10000; ++i) absl::StrAppend(&members, i == 0 ? "" : ",", "\"", i, "\":1");
  EXPECT_THAT(GrammarOf(Chat("\"guided_json\": {" + members + "}")), HasSubstr("guided_json: "));
}

TEST(OpenAiGrammar, RefusesAGrammarThatIsNone) {
  struct Case {
    std::string body, field;
  };
  for (const Case& c : std::vector<Case>{
           {R"("response_format": "json")", "response_format"},
           {R"("response_format": {})", "response_format"},
           {R"("response_format": {"type": "xml"})", "response_format"},
           {R"("response_format": {"type": "json_object", "schema": 5})", "response_format"},
           {R"("response_format": {"type": "json_schema"})", "response_format"},
           {R"("response_format": {"type": "json_schema", "json_schema": []})", "response_format"},
           {R"("response_format": {"type": "json_schema", "schema": {}})", "response_format"},
           {R"("response_format": {"type": "json_schema", "json_schema": {"name": "n"}})", "response_format"},
           {R"("response_format": {"type": "json_schema", "json_schema": {"schema": null}})",
            "response_format"},
           {R"("response_format": {"type": "json_schema", "json_schema": {"schema": "{}"}})",
            "response_format"},
           {R"("structured_outputs": "json")", "structured_outputs"},
           {R"("structured_outputs": {"json": 5})", "structured_outputs.json"},
           {R"("structured_outputs": {"regex": {}})", "structured_outputs.regex"},
           {R"("structured_outputs": {"choice": "yes"})", "structured_outputs.choice"},
           {R"("structured_outputs": {"choice": ["yes", 5]})", "structured_outputs.choice"},
           {R"("structured_outputs": {"grammar": []})", "structured_outputs.grammar"},
           {R"("structured_outputs": {"json_object": "yes"})", "structured_outputs.json_object"},
           {R"("structured_outputs": {"structural_tag": []})", "structured_outputs.structural_tag"},
           {R"("guided_json": [])", "guided_json"},
           {R"("guided_regex": 5)", "guided_regex"},
           {R"("guided_choice": "yes")", "guided_choice"},
           {R"("guided_grammar": {})", "guided_grammar"},
           {R"("structural_tag": 1)", "structural_tag"},
           {R"("grammar": {})", "grammar"},
           {R"("json_schema": true)", "json_schema"},
           // Two grammars at once.
           {R"("response_format": {"type": "json_object"}, "guided_regex": "a")", "guided_regex"},
           {R"("guided_json": {}, "guided_choice": ["a"])", "guided_choice"},
           {R"("grammar": "root ::= \"a\"", "structured_outputs": {"regex": "a"})",
            "structured_outputs.regex"},
           {R"("structured_outputs": {"json": {}, "regex": "a"})", "structured_outputs.regex"},
       }) {
    for (const Json& error : {ErrorOf(Completions(c.body)), ErrorOf(Chat(c.body), Endpoint::kChat)}) {
      EXPECT_EQ(error["param"], c.field) << c.body;
      EXPECT_EQ(error["code"], "invalid_value") << c.body;
      EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("allowed: ")) << c.body;
    }
  }
  const Json error =
      ErrorOf(Completions(R"("structured_outputs": {"regex": "a", "whitespace_pattern": " "})"));
  EXPECT_EQ(error["param"], "structured_outputs.whitespace_pattern");
  EXPECT_EQ(error["code"], "unsupported_parameter");
}

TEST(OpenAiGrammar, NamesAGrammarAsTheClientDid) {
  const auto error = [](const std::string& field) {
    const absl::Status status = FieldError("sampling.grammar", "a grammar", "none");
    return Json::parse(ToHttpError(status, Endpoint::kChat, field).body)["error"];
  };
  EXPECT_EQ(error("response_format")["param"], "response_format");
  EXPECT_EQ(error("structured_outputs.json")["message"], "structured_outputs.json: none; allowed: a grammar");
  EXPECT_EQ(error("")["param"], "grammar");
}

}  // namespace
}  // namespace outrider
