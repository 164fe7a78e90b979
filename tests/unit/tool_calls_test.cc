// Finds calls of tools in answers.
#include "coordinator/openai/tool_calls.h"

#include <gmock/gmock.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;

// The content and calls of an answer that comes in pieces of `size` bytes, on one line.
std::string Split(v1::ToolFormat format, const std::string& text, size_t size, bool several = true) {
  ToolCallParser parser(format, {"weather", "add"}, several);
  std::string content;
  std::vector<std::string> calls;
  const auto add = [&](const ToolText& part) {
    content += part.content;
    for (const ToolCallPart& call : part.calls) {
      if (!call.name.empty()) {
        EXPECT_EQ(call.call, calls.size());
        calls.push_back(call.name + " ");
      }
      EXPECT_EQ(call.call + 1, calls.size());
      calls.back() += call.arguments;
    }
  };
  for (size_t at = 0; at < text.size(); at += size) add(parser.Take(text.substr(at, size)));
  add(parser.End());
  return absl::StrCat(content, "|", absl::StrJoin(calls, "|"));
}

struct Recorded {
  v1::ToolFormat format;
  std::string text, split;
};

// Answers in the forms that models of each family write.
const std::vector<Recorded>& Answers() {
  static const auto* const answers = new std::vector<Recorded>{
      {v1::TOOL_FORMAT_HERMES,
       "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"place\": \"Bern\"}}\n</tool_call>",
       "|weather {\"place\": \"Bern\"}"},
      {v1::TOOL_FORMAT_HERMES,
       "Let me see.\n\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"place\": \"a } ] \\\" b\"}}\n"
       "</tool_call>\n<tool_call>\n{\"arguments\": {\"numbers\": [1, {\"x\": []}]}, \"name\": "
       "\"add\"}\n</tool_call>",
       "Let me see.|weather {\"place\": \"a } ] \\\" b\"}|add {\"numbers\": [1, {\"x\": []}]}"},
      {v1::TOOL_FORMAT_HERMES,
       "<think>\nhm\n</think>\n\n<tool_call>{\"name\":\"add\",\"arguments\":{}}</tool_call>",
       "<think>\nhm\n</think>|add {}"},
      {v1::TOOL_FORMAT_HERMES, "1 < 2 and <tool> is no call, <tool_call",
       "1 < 2 and <tool> is no call, <tool_call|"},
      {v1::TOOL_FORMAT_HERMES, "<tool_call>\nweather(Bern)\n</tool_call> so",
       "<tool_call>\nweather(Bern)\n</tool_call> so|"},
      {v1::TOOL_FORMAT_HERMES, "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
       "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>|"},
      {v1::TOOL_FORMAT_HERMES,
       "<tool_call>no<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>and",
       "<tool_call>noand|add {}"},
      // The tokenizer keeps the mark to itself.
      {v1::TOOL_FORMAT_HERMES, "\n{\"name\": \"add\", \"arguments\": {}}\n", "|add {}"},
      {v1::TOOL_FORMAT_LLAMA, "{\"name\": \"weather\", \"parameters\": {\"place\": \"Bern\"}}",
       "|weather {\"place\": \"Bern\"}"},
      {v1::TOOL_FORMAT_LLAMA,
       "<|python_tag|>{\"type\": \"function\", \"name\": \"weather\", \"parameters\": {}}", "|weather {}"},
      {v1::TOOL_FORMAT_LLAMA,
       "{\"name\": \"add\", \"parameters\": {\"numbers\": [1]}}; {\"name\": \"weather\", \"parameters\": {}}",
       "|add {\"numbers\": [1]}|weather {}"},
      {v1::TOOL_FORMAT_LLAMA, "<|python_tag|>brave_search.call(query=\"x\")",
       "<|python_tag|>brave_search.call(query=\"x\")|"},
      {v1::TOOL_FORMAT_MISTRAL,
       "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"place\": \"Bern\"}}, {\"name\": \"add\", "
       "\"arguments\": {\"numbers\": []}}]",
       "|weather {\"place\": \"Bern\"}|add {\"numbers\": []}"},
      {v1::TOOL_FORMAT_MISTRAL, "[{\"name\": \"add\", \"arguments\": {}}]", "|add {}"},
      {v1::TOOL_FORMAT_MISTRAL, "[1, 2] is a list", "[1, 2] is a list|"},
      {v1::TOOL_FORMAT_JSON, "{\"name\": \"add\", \"arguments\": {\"numbers\": [1, 2]}}",
       "|add {\"numbers\": [1, 2]}"},
      {v1::TOOL_FORMAT_JSON,
       "[{\"name\": \"add\", \"arguments\": {}}, {\"name\": \"add\", \"arguments\": {}}]", "|add {}|add {}"},
      {v1::TOOL_FORMAT_JSON, "{\"id\": 7, \"name\": \"add\", \"arguments\": \"{\\\"numbers\\\": [1]}\"}",
       "|add {\"numbers\": [1]}"},
      {v1::TOOL_FORMAT_JSON, "{\"name\": \"add\", \"arguments\": null}", "|add {}"},
      {v1::TOOL_FORMAT_JSON, "{\"name\": \"add\"} Done.", " Done.|add {}"},
      // Answers that look like calls.
      {v1::TOOL_FORMAT_JSON, "{\"name\": \"Ada\", \"age\": 36}", "{\"name\": \"Ada\", \"age\": 36}|"},
      {v1::TOOL_FORMAT_JSON, "{\"title\": \"add\"}", "{\"title\": \"add\"}|"},
      {v1::TOOL_FORMAT_JSON, "{\"arguments\": {}}", "{\"arguments\": {}}|"},
      {v1::TOOL_FORMAT_JSON, "[] {} ]", "[] {} ]|"},
      {v1::TOOL_FORMAT_JSON, "Call {\"name\": \"add\", \"arguments\": {}}",
       "Call {\"name\": \"add\", \"arguments\": {}}|"},
      {v1::TOOL_FORMAT_JSON, "  plain", "  plain|"},
      {v1::TOOL_FORMAT_JSON, "", "|"},
      // Answers that were cut.
      {v1::TOOL_FORMAT_HERMES, "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"numbers\": [1",
       "|add {\"numbers\": [1"},
      {v1::TOOL_FORMAT_HERMES, "<tool_call>\n{\"name\": \"ad", "<tool_call>\n{\"name\": \"ad|"},
      {v1::TOOL_FORMAT_HERMES, "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool", "|add {}"},
      {v1::TOOL_FORMAT_MISTRAL, "[{\"name\": \"add\", \"arguments\": {}},", "|add {}"},
      // Once the name has been told, what follows is skipped.
      {v1::TOOL_FORMAT_JSON, "{\"name\": \"add\", \"arguments\": {\"a\": 1}, \"why\": [\"}\"]}",
       "|add {\"a\": 1}"},
  };
  return *answers;
}

TEST(ToolCallParser, FindsTheCallsInEachFormatHoweverTheTextComes) {
  for (const Recorded& answer : Answers()) {
    for (const size_t size : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, size_t{1000}}) {
      EXPECT_EQ(Split(answer.format, answer.text, size), answer.split) << answer.text << " by " << size;
    }
  }
}

TEST(ToolCallParser, LeavesOutCallsAfterTheFirstIfOneIsWanted) {
  EXPECT_EQ(Split(v1::TOOL_FORMAT_MISTRAL,
                  R"([{"name": "add", "arguments": {}}, {"name": "weather", "arguments": {"a": 1}}])", 1,
                  /*several=*/false),
            "|add {}");
}

TEST(ToolCallParser, TellsTheNameAndTheBeginOfArgumentsBeforeTheirEnd) {
  ToolCallParser parser(v1::TOOL_FORMAT_HERMES, {"add"}, true);
  EXPECT_THAT(parser.Take("<tool_call>{\"name\": \"add\", ").calls, ElementsAre());
  const ToolText begun = parser.Take("\"arguments\": {\"numbers\": [1,");
  ASSERT_EQ(begun.calls.size(), 1);
  EXPECT_EQ(begun.calls[0].name, "add");
  EXPECT_EQ(begun.calls[0].arguments, "{\"numbers\": [1,");
  EXPECT_EQ(parser.calls(), 0);
  const ToolText rest = parser.Take("2]}}");
  ASSERT_EQ(rest.calls.size(), 1);
  EXPECT_EQ(rest.calls[0].name, "");
  EXPECT_EQ(rest.calls[0].arguments, "2]}");
  EXPECT_EQ(parser.calls(), 1);
}

// Takes every prefix of every answer in two pieces. Without a call, the content is the whole text.
TEST(ToolCallParser, LosesNoTextOfAnswersWithoutCalls) {
  for (const Recorded& answer : Answers()) {
    for (size_t end = 0; end <= answer.text.size(); ++end) {
      const std::string prefix = answer.text.substr(0, end);
      const std::string split = Split(answer.format, prefix, end / 2 + 1);
      if (absl::EndsWith(split, "|")) {
        EXPECT_EQ(split, prefix + "|");
      }
    }
  }
}

}  // namespace
}  // namespace outrider
