// Some thousand expressions are rendered as by Jinja2 (scripts/goldens/expressions.py), or refused.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "coordinator/api/chat_template.h"

namespace outrider {
namespace {

using OrderedJson = nlohmann::ordered_json;

TEST(ChatTemplateExpressions, AreWhatJinja2MakesOfThemOrRefused) {
  const OrderedJson goldens = OrderedJson::parse(std::ifstream("tests/data/chat/expressions.json"));
  const Conversation chat{.messages = {{"user", "hi"}}, .variables = goldens["variables"].dump()};
  int rendered = 0;
  for (const OrderedJson& golden : goldens["templates"]) {
    const auto chat_template = ChatTemplate::Parse(golden[0], {});
    if (!chat_template.ok()) continue;
    const auto text = (*chat_template)->Render(chat, 0);
    if (!text.ok()) continue;
    ++rendered;
    EXPECT_EQ(OrderedJson(text->text), golden[1]) << golden[0];
  }
  EXPECT_GE(rendered, 2300) << "it refuses more than it did";
}

}  // namespace
}  // namespace outrider
