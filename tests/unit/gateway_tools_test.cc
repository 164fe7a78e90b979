// Tools in OpenAI's API: which may be called, the grammar for calls, and the calls in an answer, whole and
// streamed.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/grammar/grammar.h"
#include "common/grammar/vocabulary.h"
#include "coordinator/openai/openai_answer.h"
#include "coordinator/openai/tool_fields.h"
#include "openai_request_testing.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ToolJson = nlohmann::ordered_json;

constexpr char kTools[] =
    R"("tools": [{"type": "function", "function": {"name": "weather", "description": "of a place", "parameters":
       {"type": "object", "properties": {"place": {"enum": ["Bern", "Biel"]}, "days": {"type": "integer"}},
        "required": ["place", "days"], "additionalProperties": false}}},
       {"type": "function", "function": {"name": "now"}}])";

OpenAiRequest ToolRequest(const std::string& more = "") {
  return Chat(absl::StrCat(kTools, more.empty() ? "" : ", ", more)).value();
}

v1::GenerateResponse Piece(const std::string& text, bool ends = false,
                           v1::FinishReason reason = v1::FINISH_REASON_STOP) {
  v1::GenerateResponse chunk;
  chunk.set_text(text);
  if (ends) chunk.mutable_finish()->set_reason(reason);
  return chunk;
}

ToolJson WholeAnswer(const OpenAiRequest& request, v1::ToolFormat format,
                     const std::vector<v1::GenerateResponse>& pieces) {
  OpenAiAnswer answer(&request, {.id = "id", .created = 1, .model = "m", .tool_format = format});
  for (const v1::GenerateResponse& piece : pieces) answer.Add(0, piece);
  return ToolJson::parse(absl::StrJoin(answer.Body(), ""))["choices"][0];
}

TEST(OpenAiTools, AreForTheTemplateInTheirOrder) {
  const OpenAiRequest request = ToolRequest();
  EXPECT_EQ(request.tools.choice, ToolUse::Choice::kAuto);
  EXPECT_TRUE(request.tools.parallel);
  EXPECT_TRUE(
      absl::StartsWith(request.prompts[0].chat().tools(),
                       R"([{"type":"function","function":{"name":"weather","description":"of a place")"));
  EXPECT_EQ(ToolRequest(R"("tool_choice": "none")").prompts[0].chat().tools(), "");
  EXPECT_EQ(ToolRequest(R"("tool_choice": "none")").tools.functions.size(), 0);
  EXPECT_EQ(Chat(R"("tools": [])").value().tools.choice, ToolUse::Choice::kNone);
  EXPECT_FALSE(ToolRequest(R"("parallel_tool_calls": false)").tools.parallel);
}

TEST(OpenAiTools, WhatIsWrongIsNamed) {
  const std::string named = R"("tool_choice": {"type": "function", "function": {"name": ")";
  for (
      const auto& [more, field] : std::vector<std::pair<std::string, std::string>>{
          {R"("tools": 1)", "tools"},
          {R"("tools": [{"type": "custom", "custom": {"name": "a"}}])", "tools"},
          {R"("tools": [{"type": "function", "function": {"name": ""}}])", "tools"},
          {R"("tools": [{"type": "function", "function": {"name": "a", "parameters": []}}])", "tools"},
          {R"("tools": [{"type": "function", "function": {"name": "a"}}, {"type": "function", "function": {"name": "a"}}])",
           "tools"},
          {R"("tool_choice": "required")", "tool_choice"},
          {absl::StrCat(kTools, ", ", named, "other\"}}"), "tool_choice"},
          {absl::StrCat(kTools, R"(, "tool_choice": "any")"), "tool_choice"},
          {absl::StrCat(kTools, R"(, "parallel_tool_calls": 1)"), "parallel_tool_calls"}}) {
    const absl::StatusOr<OpenAiRequest> parsed = Chat(more);
    ASSERT_FALSE(parsed.ok()) << more;
    EXPECT_EQ(MetadataOf(parsed.status(), "field"), field) << parsed.status();
  }
}

constexpr v1::ToolFormat kFormats[] = {v1::TOOL_FORMAT_JSON, v1::TOOL_FORMAT_LLAMA, v1::TOOL_FORMAT_HERMES,
                                       v1::TOOL_FORMAT_MISTRAL};

// Whether the grammar allows these bytes as a complete answer.
bool Allows(const v1::SamplingParams& sampling, const std::string& answer) {
  static const auto* const bytes = new GrammarVocabulary(BytesVocabulary());
  const auto grammar = Grammar::Compile(
      {.syntax = GrammarSyntax::kStructuralTag, .text = sampling.grammar().structural_tag()}, *bytes);
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  if (!grammar.ok()) return false;
  const auto mask = (*grammar)->NewGrammarMask();
  std::vector<TokenId> tokens;
  const auto may_come = [&](TokenId token) {
    std::vector<float> row(kEndOfBytes + 1);
    mask->Apply(tokens, row);
    return row[static_cast<size_t>(token)] == 0;
  };
  for (const char byte : answer) {
    const auto token = static_cast<TokenId>(static_cast<unsigned char>(byte));
    if (!may_come(token)) return false;
    tokens.push_back(token);
  }
  return may_come(kEndOfBytes);
}

std::string Call(const std::string& function, const std::string& arguments, v1::ToolFormat format) {
  const bool is_llama = format == v1::TOOL_FORMAT_LLAMA, is_hermes = format == v1::TOOL_FORMAT_HERMES;
  return absl::StrCat(is_hermes ? "<tool_call>\n" : "", R"({"name": ")", function, R"(", ")",
                      is_llama ? "parameters" : "arguments", R"(": )", arguments, "}",
                      is_hermes ? "\n</tool_call>" : "");
}

constexpr char kBern[] = R"({"place": "Bern", "days": 3})";
constexpr char kElsewhere[] = R"({"place": "Rome", "days": 3})";

// One call as an answer.
std::string Alone(const std::string& call, v1::ToolFormat format) {
  return format == v1::TOOL_FORMAT_MISTRAL ? absl::StrCat("[", call, "]") : call;
}

std::string Both(v1::ToolFormat format) {
  const bool is_hermes = format == v1::TOOL_FORMAT_HERMES;
  const std::string calls =
      absl::StrCat(Call("weather", kBern, format), is_hermes ? "\n" : ", ", Call("now", "{}", format));
  return is_hermes ? calls : absl::StrCat("[", calls, "]");
}

TEST(OpenAiTools, WhereACallIsRequiredTheAnswerIsOneOfTheFormat) {
  for (const v1::ToolFormat format : kFormats) {
    v1::SamplingParams sampling;
    EXPECT_EQ(*ConstrainToTools(ToolRequest(R"("tool_choice": "required")").tools, format, &sampling), true);
    EXPECT_TRUE(Allows(sampling, Alone(Call("weather", kBern, format), format))) << format;
    EXPECT_TRUE(Allows(sampling, Alone(Call("now", "{}", format), format))) << format;
    EXPECT_FALSE(Allows(sampling, Alone(Call("weather", kElsewhere, format), format))) << format;
    EXPECT_FALSE(Allows(sampling, Alone(Call("now", R"({"a": 1})", format), format))) << format;
    EXPECT_FALSE(Allows(sampling, "Hello")) << format;
    EXPECT_FALSE(Allows(sampling, "")) << format;
    EXPECT_EQ(Allows(sampling, Both(format)), format != v1::TOOL_FORMAT_LLAMA) << format;
    v1::SamplingParams single;
    const std::string more = R"("tool_choice": "required", "parallel_tool_calls": false)";
    EXPECT_EQ(*ConstrainToTools(ToolRequest(more).tools, format, &single), true);
    EXPECT_TRUE(Allows(single, Alone(Call("now", "{}", format), format))) << format;
    EXPECT_FALSE(Allows(single, Both(format))) << format;
    // A call that the grammar allows is found in the answer.
    const OpenAiRequest request = ToolRequest();
    const ToolJson choice =
        WholeAnswer(request, format, {Piece(Alone(Call("weather", kBern, format), format), /*ends=*/true)});
    EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], kBern) << format;
  }
}

TEST(OpenAiTools, ANamedFunctionIsTheOnlyOne) {
  const std::string named = R"("tool_choice": {"type": "function", "function": {"name": "now"}})";
  for (const v1::ToolFormat format : kFormats) {
    v1::SamplingParams sampling;
    EXPECT_EQ(*ConstrainToTools(ToolRequest(named).tools, format, &sampling), true);
    EXPECT_TRUE(Allows(sampling, Alone(Call("now", "{}", format), format)));
    EXPECT_FALSE(Allows(sampling, Alone(Call("weather", kBern, format), format)));
  }
}

TEST(OpenAiTools, TheModelIsFreeUnlessAFunctionIsStrict) {
  const std::string strict =
      absl::StrReplaceAll(kTools, {{R"("description": "of a place")", R"("strict": true)"}});
  for (const v1::ToolFormat format : kFormats) {
    v1::SamplingParams free, held;
    EXPECT_EQ(*ConstrainToTools(ToolRequest().tools, format, &free), false);
    EXPECT_FALSE(free.has_grammar());
    EXPECT_EQ(*ConstrainToTools(Chat(strict).value().tools, format, &held), true);
    EXPECT_TRUE(Allows(held, "Hello, \t{\"a\": 1} <b>"));
    EXPECT_TRUE(Allows(held, "So: " + Call("weather", kBern, format) + " Done."));
    EXPECT_FALSE(Allows(held, "So: " + Call("weather", kElsewhere, format)));
    EXPECT_TRUE(Allows(held, Call("now", R"({"a": 1})", format))) << "which is not strict";
  }
}

TEST(OpenAiTools, ASchemaIsForAnswersThatCallNothing) {
  for (const v1::ToolFormat format : kFormats) {
    v1::SamplingParams sampling;
    sampling.mutable_grammar()->set_json_schema(
        R"({"type": "object", "properties": {"sum": {"type": "integer"}},
        "required": ["sum"], "additionalProperties": false})");
    EXPECT_EQ(*ConstrainToTools(ToolRequest().tools, format, &sampling), true);
    EXPECT_TRUE(Allows(sampling, R"({"sum": 12})"));
    EXPECT_TRUE(Allows(sampling, Alone(Call("now", "{}", format), format)));
    EXPECT_FALSE(Allows(sampling, R"({"sum": "12"})"));
    EXPECT_FALSE(Allows(sampling, "Hello"));
  }
}

TEST(OpenAiTools, OtherGrammarsDoNotGoWithForcedCalls) {
  v1::SamplingParams sampling;
  sampling.mutable_grammar()->set_regex("a+");
  EXPECT_EQ(*ConstrainToTools(ToolRequest().tools, v1::TOOL_FORMAT_JSON, &sampling), false);
  EXPECT_EQ(sampling.grammar().regex(), "a+");
  const auto forced =
      ConstrainToTools(ToolRequest(R"("tool_choice": "required")").tools, v1::TOOL_FORMAT_JSON, &sampling);
  EXPECT_EQ(MetadataOf(forced.status(), "field"), "tool_choice");
}

// Lengths are enforced in tags too, as long as there is no free text between them.
TEST(OpenAiTools, ArgumentsMayHaveALength) {
  const std::string tools =
      R"("tool_choice": "required", "tools": [{"type": "function", "function": {"name": "say", "parameters":
         {"type": "object", "properties": {"word": {"type": "string", "maxLength": 2}}, "required": ["word"],
          "additionalProperties": false}}}])";
  v1::SamplingParams sampling;
  EXPECT_EQ(*ConstrainToTools(Chat(tools).value().tools, v1::TOOL_FORMAT_HERMES, &sampling), true);
  EXPECT_TRUE(Allows(sampling, Call("say", R"({"word": "ab"})", v1::TOOL_FORMAT_HERMES)));
  EXPECT_FALSE(Allows(sampling, Call("say", R"({"word": "abc"})", v1::TOOL_FORMAT_HERMES)));
  EXPECT_FALSE(Allows(sampling, Call("say", "{\"word\": \"\t\"}", v1::TOOL_FORMAT_HERMES)));
}

TEST(OpenAiTools, EarlierCallsReachTheTemplateInTheirOrder) {
  const auto request = ParseOpenAiRequest(Endpoint::kChat, R"({"messages": [{"role": "user", "content": "?"},
      {"role": "assistant", "content": null, "tool_calls": [{"type": "function", "id": "1", "function":
        {"name": "add", "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "1", "content": "3"}]})");
  ASSERT_TRUE(request.ok()) << request.status();
  const v1::ChatPrompt& chat = request->prompts[0].chat();
  EXPECT_EQ(chat.messages(1).fields(),
            R"({"tool_calls":[{"type":"function","id":"1","function":{"name":"add","arguments":"{}"}}]})");
  EXPECT_EQ(chat.messages(2).fields(), R"({"tool_call_id":"1"})");
  for (const char* calls : {"1", R"([{"type": "function"}])", R"([{"function": {"name": 1}}])",
                            R"([{"function": {"name": "a", "arguments": 1}}])"}) {
    EXPECT_EQ(ErrorOf(ParseOpenAiRequest(Endpoint::kChat,
                                         absl::StrCat(R"({"messages": [{"role": "assistant", "tool_calls": )",
                                                      calls, "}]}")))["param"],
              "messages");
  }
}

TEST(OpenAiToolAnswer, HasTheCallsInOpenAisForm) {
  const OpenAiRequest request = ToolRequest();
  const ToolJson choice =
      WholeAnswer(request, v1::TOOL_FORMAT_HERMES,
                  {Piece("Well.\n"), Piece(Both(v1::TOOL_FORMAT_HERMES)), Piece("", /*ends=*/true)});
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  const ToolJson& message = choice["message"];
  EXPECT_EQ(message["content"], "Well.");
  ASSERT_EQ(message["tool_calls"].size(), 2);
  EXPECT_EQ(message["tool_calls"][0]["type"], "function");
  EXPECT_EQ(message["tool_calls"][0]["function"]["name"], "weather");
  EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], kBern);
  EXPECT_EQ(message["tool_calls"][1]["function"]["arguments"], "{}");
  EXPECT_TRUE(absl::StartsWith(message["tool_calls"][0]["id"].get<std::string>(), "call_"));
  EXPECT_NE(message["tool_calls"][0]["id"], message["tool_calls"][1]["id"]);
  EXPECT_FALSE(message["tool_calls"][0].contains("index"));
}

TEST(OpenAiToolAnswer, SaysWhyItEndedAsOpenAiDoes) {
  const std::string call = Call("now", "{}", v1::TOOL_FORMAT_JSON);
  const auto reason = [&](const std::string& more, const std::string& text, v1::FinishReason end) {
    const OpenAiRequest request = ToolRequest(more);
    const ToolJson choice = WholeAnswer(request, v1::TOOL_FORMAT_JSON, {Piece(text, true, end)});
    return absl::StrCat(choice["finish_reason"].get<std::string>(), " ",
                        choice["message"]["content"].is_null() ? "null" : "text");
  };
  EXPECT_EQ(reason("", call, v1::FINISH_REASON_STOP), "tool_calls null");
  EXPECT_EQ(reason(R"("tool_choice": "required")", call, v1::FINISH_REASON_STOP), "tool_calls null");
  EXPECT_EQ(reason(R"("tool_choice": {"type": "function", "function": {"name": "now"}})", call,
                   v1::FINISH_REASON_STOP),
            "stop null");
  EXPECT_EQ(reason("", "Hello", v1::FINISH_REASON_STOP), "stop text");
  EXPECT_EQ(reason("", call.substr(0, call.size() - 2), v1::FINISH_REASON_LENGTH), "length null");
  EXPECT_EQ(reason(R"("tool_choice": "none")", call, v1::FINISH_REASON_STOP), "stop text");
}

TEST(OpenAiToolAnswer, MistralsIdsAreNineLettersAndDigits) {
  const OpenAiRequest request = ToolRequest();
  const ToolJson choice = WholeAnswer(request, v1::TOOL_FORMAT_MISTRAL,
                                      {Piece(R"([{"name": "now", "arguments": {}}])", /*ends=*/true)});
  EXPECT_THAT(choice["message"]["tool_calls"][0]["id"].get<std::string>(),
              ::testing::MatchesRegex("[0-9a-f]{9}"));
}

TEST(OpenAiToolAnswer, AStreamHasTheSameCallsInPieces) {
  const OpenAiRequest request = ToolRequest(R"("stream": true)");
  OpenAiAnswer answer(&request,
                      {.id = "id", .created = 1, .model = "m", .tool_format = v1::TOOL_FORMAT_MISTRAL});
  std::string content;
  std::vector<std::string> names, arguments, reasons;
  const std::string text = Both(v1::TOOL_FORMAT_MISTRAL);
  for (size_t at = 0; at <= text.size(); at += 6) {
    const std::string event = answer.AddAsEvent(0, Piece(text.substr(at, 6), at + 6 > text.size()));
    if (event.empty()) continue;
    const ToolJson choice = ToolJson::parse(event.substr(sizeof("data: ") - 1))["choices"][0];
    if (!choice["finish_reason"].is_null()) reasons.push_back(choice["finish_reason"]);
    content += choice["delta"].value("content", "");
    for (const ToolJson& call : choice["delta"].value("tool_calls", ToolJson::array())) {
      const size_t index = call["index"];
      if (call.contains("id")) {
        EXPECT_EQ(index, names.size());
        names.push_back(call["function"]["name"]);
        arguments.emplace_back();
      }
      ASSERT_LT(index, arguments.size());
      arguments[index] += call["function"]["arguments"].get<std::string>();
    }
  }
  EXPECT_EQ(content, "");
  EXPECT_THAT(names, ElementsAre("weather", "now"));
  EXPECT_THAT(arguments, ElementsAre(kBern, "{}"));
  EXPECT_THAT(reasons, ElementsAre("tool_calls"));
}

}  // namespace
}  // namespace outrider
