// Finds tool calls in an answer. The input is a byte for the format, one for the cut, and the answer.
#include "coordinator/openai/tool_calls.h"

#include <map>

#include "tests/fuzz/target.h"

namespace outrider {
namespace {

// The content and the calls of all pieces of an answer.
struct Found {
  std::string content;
  std::map<size_t, std::string> calls;

  void Add(const ToolText& text) {
    content += text.content;
    for (const ToolCallPart& part : text.calls) calls[part.call] += part.name + " " + part.arguments;
  }
};

Found InTwo(std::string_view text, size_t cut, v1::ToolFormat format) {
  ToolCallParser parser(format, {"f", "g"}, /*several=*/true);
  Found found;
  found.Add(parser.Take(std::string(text.substr(0, cut))));
  found.Add(parser.Take(std::string(text.substr(cut))));
  found.Add(parser.End());
  return found;
}

}  // namespace

void FuzzTarget(std::string_view input) {
  Input bytes(input);
  const auto format = static_cast<v1::ToolFormat>(bytes.Byte() % v1::ToolFormat_ARRAYSIZE);
  const size_t cut = bytes.Byte();
  const std::string_view text = bytes.rest();
  const Found whole = InTwo(text, text.size(), format);
  const Found halves = InTwo(text, std::min(cut, text.size()), format);
  Require(whole.content == halves.content, "a text is the same however it comes");
  Require(whole.calls.size() == halves.calls.size(), "calls are the same however they come");
  Require(!whole.calls.empty() || whole.content == text, "without a call nothing is left out");
}

}  // namespace outrider
