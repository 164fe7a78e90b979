// Conversations with tools: published templates render them as in transformers
// (scripts/goldens/tool_chat.py), and templates that do not know tools get text in place of tools.
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "common/text/json.h"
#include "coordinator/api/tools.h"
#include "tests/unit/chat_goldens.h"

namespace outrider {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Ordered = nlohmann::ordered_json;

Ordered ToolGoldens() { return Ordered::parse(std::ifstream("tests/data/chat/tools.json")); }

// Builds a conversation as the gateway does.
Conversation ConversationOf(const Ordered& messages, const Ordered& tools) {
  Conversation conversation{.tools = tools.is_null() ? "" : tools.dump()};
  for (Ordered message : messages) {
    const std::string role = message["role"], content = message["content"];
    message.erase("role");
    message.erase("content");
    conversation.messages.push_back({role, content, {}, message.empty() ? "" : DumpJson(message)});
  }
  return conversation;
}

std::unique_ptr<const ChatTemplate> Published(const std::string& name) {
  return ChatTemplate::Parse(PublishedSource(name), ChatGoldens()["special_tokens"]).value();
}

std::string Rendered(const ChatTemplate& chat_template, Conversation chat) {
  AdaptTools(chat_template, &chat);
  return TextOf(chat_template.Render(chat, ChatGoldens()["now"]));
}

TEST(ChatTools, PublishedTemplatesWriteWhatTransformersWrites) {
  const Ordered goldens = ToolGoldens();
  EXPECT_EQ(goldens["published"].size(), 9);
  for (const auto& [name, hashes] : goldens["published"].items()) {
    const auto chat_template = Published(name);
    for (size_t i = 0; i < hashes.size(); ++i) {
      const std::string text =
          Rendered(*chat_template, ConversationOf(goldens["conversations"][i], goldens["tools"]));
      EXPECT_EQ(Sha256(text), hashes[i]) << name << ", conversation " << i << ":\n" << text;
    }
  }
}

// A negative control: the members of the tools in another order.
TEST(ChatTools, OtherArgumentsAreNoticed) {
  const Ordered goldens = ToolGoldens();
  const auto qwen = Published("Qwen-Qwen2.5-7B-Instruct");
  const Ordered sorted = Ordered::parse(nlohmann::json::parse(goldens["tools"].dump()).dump());
  const std::string text = Rendered(*qwen, ConversationOf(goldens["conversations"][0], sorted));
  EXPECT_NE(Sha256(text), goldens["published"]["Qwen-Qwen2.5-7B-Instruct"][0]);
}

TEST(ChatTools, TheFormatIsThatOfTheTemplate) {
  for (const auto& [name, format] : std::map<std::string, v1::ToolFormat>{
           {"meta-llama-Llama-3.1-8B-Instruct", v1::TOOL_FORMAT_LLAMA},
           {"meta-llama-Llama-3.2-3B-Instruct", v1::TOOL_FORMAT_LLAMA},
           {"Qwen-Qwen2.5-7B-Instruct", v1::TOOL_FORMAT_HERMES},
           {"Qwen-Qwen3-0.6B", v1::TOOL_FORMAT_HERMES},
           {"NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", v1::TOOL_FORMAT_HERMES},
           {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", v1::TOOL_FORMAT_HERMES},
           {"mistralai-Mistral-Nemo-Instruct-2407", v1::TOOL_FORMAT_MISTRAL},
           {"google-gemma-2-2b-it", v1::TOOL_FORMAT_JSON}}) {
    EXPECT_EQ(ToolFormatOf(Published(name).get()), format) << name;
  }
  EXPECT_EQ(ToolFormatOf(nullptr), v1::TOOL_FORMAT_UNSPECIFIED);
}

constexpr char kAnyRole[] = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}";

TEST(ChatTools, ATemplateWithoutToolsIsGivenTheirDescription) {
  const Ordered goldens = ToolGoldens();
  const auto any = ChatTemplate::Parse(kAnyRole, {}).value();
  const std::string first = Rendered(*any, ConversationOf(goldens["conversations"][0], goldens["tools"]));
  EXPECT_THAT(first, AllOf(HasSubstr("[system] You can call these functions:\n{\"name\":\"weather\""),
                           HasSubstr("\n{\"name\":\"add\""), HasSubstr("[user] Is it warmer")));
  const std::string second = Rendered(*any, ConversationOf(goldens["conversations"][1], goldens["tools"]));
  EXPECT_THAT(second, HasSubstr("[system] Be brief.\n\nYou can call"));
  EXPECT_THAT(Rendered(*any, ConversationOf(goldens["conversations"][0], Ordered())),
              Not(HasSubstr("You can call")));
}

TEST(ChatTools, ATemplateWithoutCallsIsGivenThemAsText) {
  const Ordered goldens = ToolGoldens();
  const auto any = ChatTemplate::Parse(kAnyRole, {}).value();
  EXPECT_THAT(Rendered(*any, ConversationOf(goldens["conversations"][2], goldens["tools"])),
              HasSubstr("[assistant] {\"name\":\"weather\",\"arguments\":{\"unit\":\"celsius\",\"place\":"
                        "\"Zürich \\\"Altstadt\\\"\"}}\n[tool] {\"celsius\": 21.5}\n"));
  EXPECT_THAT(Rendered(*any, ConversationOf(goldens["conversations"][4], goldens["tools"])),
              HasSubstr("[assistant] [{\"name\":\"add\",\"arguments\":{\"numbers\":[1,2.5]}},"
                        "{\"name\":\"weather\",\"arguments\":{}}]\n"));
}

TEST(ChatTools, ATemplateThatLeavesToolsOutIsGivenWhatTheySayAsTheUser) {
  const Ordered goldens = ToolGoldens();
  const auto two = ChatTemplate::Parse(
                       "{% for m in messages %}{% if m.role in ['user', 'assistant', 'system'] %}"
                       "[{{ m.role }}] {{ m.content }}\n{% endif %}{% endfor %}",
                       {})
                       .value();
  EXPECT_THAT(Rendered(*two, ConversationOf(goldens["conversations"][2], goldens["tools"])),
              HasSubstr("[user] {\"tool_response\":\"{\\\"celsius\\\": 21.5}\"}\n"));
}

TEST(ChatTools, AreAListOfObjects) {
  EXPECT_TRUE(CheckTools(R"([{"a": 1}])").ok());
  EXPECT_TRUE(CheckTools("[]").ok());
  for (const char* tools : {"{}", "[1]", "[", "\"a\""}) EXPECT_FALSE(CheckTools(tools).ok()) << tools;
  const auto of = [](int tools) { return Ordered(std::vector<Ordered>(tools, Ordered::object())).dump(); };
  EXPECT_TRUE(CheckTools(of(128)).ok());
  EXPECT_FALSE(CheckTools(of(129)).ok());
}

}  // namespace
}  // namespace outrider
