// Chat templates rendered as in transformers, and the files that contain them.
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/temporary_folder.h"
#include "coordinator/api/chat_template.h"
#include "coordinator/api/parse_request.h"
#include "tests/unit/chat_goldens.h"
#include "tests/unit/gguf_testing.h"

namespace outrider {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

TEST(ChatTemplate, WritesWhatTransformersWritesAndRefusesWhatItRefuses) {
  const Json goldens = ChatGoldens();
  const Json& conversations = goldens["conversations"];
  int compared = 0;
  for (const auto& [name, golden_template] : goldens["templates"].items()) {
    const auto chat_template = ChatTemplate::Parse(golden_template["source"], goldens["special_tokens"]);
    ASSERT_TRUE(chat_template.ok()) << name << ": " << chat_template.status();
    ASSERT_EQ(golden_template["goldens"].size(), conversations.size());
    for (size_t i = 0; i < conversations.size(); ++i) {
      const Json& golden = golden_template["goldens"][i];
      const auto text = (*chat_template)->Render({.messages = Messages(conversations[i])}, goldens["now"]);
      if (golden.contains("error")) {
        EXPECT_EQ(text.status().message(), golden["error"].get<std::string>()) << name << conversations[i];
      } else {
        EXPECT_EQ(TextOf(text), golden["text"].get<std::string>()) << name << conversations[i];
      }
      ++compared;
    }
  }
  EXPECT_EQ(compared, 210);
}

TEST(ChatTemplate, OfTheShippedPairIsTheOneThatWasCompared) {
  const Json goldens = ChatGoldens();
  const Json& golden = goldens["templates"]["shipped"]["goldens"].front();
  const std::vector<ChatMessage> messages = Messages(goldens["conversations"].front());
  for (const char* folder : {"models/tiny-target", "models/tiny-draft"}) {
    const auto chat_template = ChatTemplate::Load(folder);
    ASSERT_TRUE(chat_template.ok() && *chat_template != nullptr) << folder;
    EXPECT_EQ(TextOf((*chat_template)->Render({.messages = messages}, 0)), golden["text"]);
  }
}

// A folder for the files beside a tokenizer.
class ChatTemplateFiles : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_.path() + "/" + name) << content;
  }
  // Renders with the template of the folder, or of a file in it.
  std::string Render(const std::string& name = "") const {
    const auto loaded = ChatTemplate::Load(name.empty() ? folder_.path() : folder_.path() + "/" + name);
    if (!loaded.ok()) return loaded.status().ToString();
    if (*loaded == nullptr) return "none";
    return TextOf((*loaded)->Render({.messages = {{"user", "hi"}}}, 0));
  }

  const TemporaryFolder folder_;
};

TEST_F(ChatTemplateFiles, AModelWithoutATemplateHasNone) {
  EXPECT_EQ(Render(), "none");
  Write("tokenizer_config.json", R"({"bos_token": "<s>"})");
  EXPECT_EQ(Render(), "none");
}

TEST_F(ChatTemplateFiles, TheConfigHasTheTemplateAndItsSpecialTokens) {
  Write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": {"content": "</s>"},
                                     "chat_template": "{{ bos_token + messages[0].content + eos_token }}"})");
  EXPECT_EQ(Render(), "<s>hi</s>");
}

TEST_F(ChatTemplateFiles, OfSeveralTemplatesTheDefaultIsTaken) {
  Write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "tools"},
                                                       {"name": "default", "template": "plain"}]})");
  EXPECT_EQ(Render(), "plain");
}

TEST_F(ChatTemplateFiles, AFileOfItsOwnComesFirst) {
  Write("tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": "config"})");
  Write("chat_template.jinja", "{{ bos_token }}own");
  EXPECT_EQ(Render(), "<s>own");
}

TEST_F(ChatTemplateFiles, ADamagedFileIsNamed) {
  Write("tokenizer_config.json", "{");
  EXPECT_THAT(Render(), HasSubstr("tokenizer_config.json"));
  Write("tokenizer_config.json", R"({"chat_template": [{"name": )" + std::string(1'000'000, '[') +
                                     std::string(1'000'000, ']') + "}]}");
  EXPECT_THAT(Render(), HasSubstr("tokenizer_config.json: JSON that nests more than 64 deep"));
  Write("tokenizer_config.json", R"({"chat_template": "{% if %}"})");
  EXPECT_THAT(Render(), HasSubstr("tokenizer_config.json: chat_template: "));
  Write("chat_template.jinja", "{{ 1 +");
  EXPECT_THAT(Render(), AllOf(HasSubstr("chat_template.jinja: "), Not(HasSubstr("\n"))));
}

TEST_F(ChatTemplateFiles, AGgufFileHasTheTemplateAndTheIdsOfItsTokens) {
  const std::vector<std::string> tokens = {"<s>", "</s>"};
  GgufContent content;
  const auto rendered = [&] {
    content.WriteTo(folder_.path() + "/model.gguf");
    return Render("model.gguf");
  };
  content.Set("tokenizer.ggml.tokens", tokens)
      .Set("tokenizer.ggml.bos_token_id", uint32_t{0})
      .Set("tokenizer.ggml.eos_token_id", uint32_t{1})
      .Set("tokenizer.ggml.padding_token_id", uint32_t{2});
  EXPECT_EQ(rendered(), "none");
  content.Set("tokenizer.chat_template", "{{ bos_token + messages[0].content + eos_token }}{{ pad_token }}");
  EXPECT_EQ(rendered(), "<s>hi</s>") << "no token has the padding's id";
  content.Set("tokenizer.chat_template", "{% if %}");
  EXPECT_THAT(rendered(), AllOf(HasSubstr("model.gguf: chat_template: "), Not(HasSubstr("\n"))));
  content.Set("tokenizer.chat_template", uint32_t{1});
  EXPECT_THAT(rendered(), HasSubstr("model.gguf: tokenizer.chat_template: not a string"));
  Write("model.gguf", "GGUF");
  EXPECT_THAT(Render("model.gguf"), HasSubstr("model.gguf: "));
}

// The text that a template renders for two turns.
std::string Rendered(const std::string& source) {
  const auto chat_template = ChatTemplate::Parse(source, {});
  if (!chat_template.ok()) return std::string(chat_template.status().message());
  const std::vector<ChatMessage> messages = {{"user", "a,b"}, {"assistant", "c"}};
  return TextOf((*chat_template)->Render({.messages = messages}, 0));
}

std::string Times(int count, const std::string& text) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

struct Hostile {
  const char* name;
  std::string source;
  std::string error;
};

class HostileTemplate : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileTemplate, IsAnError) { EXPECT_THAT(Rendered(GetParam().source), HasSubstr(GetParam().error)); }

INSTANTIATE_TEST_SUITE_P(
    ChatTemplate, HostileTemplate,
    ::testing::Values(
        Hostile{"Loop", Times(4, "{% for i in range(9999) %}") + "x" + Times(4, "{% endfor %}"),
                "too many steps"},
        Hostile{"LongRange", "{{ range(1000000000000) | length }}", "a range of more than"},
        Hostile{"RangeFromBelow", "{{ range(-9000000000000000000, 9000000000000000000) | length }}",
                "a range"},
        Hostile{"Recursion", "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}",
                "it calls itself too often"},
        Hostile{
            "Doubling",
            "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
            "not come to an end"},
        Hostile{"Sharing", Times(1, "{% set x = ['ab'] %}") + Times(60, "{% set x = [x, x] %}") + "{{ x }}",
                "not come to an end"},
        Hostile{"Repetition", "{{ 'ab' * 1000000000000 }}", "not come to an end"},
        Hostile{"Replacement", "{% set x = 'a' * 100000 %}{{ x | replace('a', x) | length }}",
                "more than 16 MiB"},
        Hostile{"Indentation", "{{ 'a' | indent(1000000000, true) }}", "more than 16 MiB"},
        Hostile{"Splitting", "{% set x = ',' * 900000 %}{{ x.split(',') | length }}",
                "split has too much to do"},
        Hostile{"Stripping", "{% set x = 'b' * 900000 %}{{ x.strip('a' * 900000 ~ 'b') | length }}",
                "too many steps"},
        Hostile{"OwnMember", "{% set n = namespace() %}{% set n.x = [n] %}{{ n | tojson }}",
                "contains itself"},
        Hostile{"OwnElement", "{% set x = [1] %}{% set f = x.append %}{{ f([x]) }}", "changing a list"},
        Hostile{"Division", "{{ 1 is divisibleby(0) }}", "divisibleby is not supported"},
        Hostile{"HiddenDivision", "{{ [1] | select('divisible' ~ 'by', 0) }}",
                "divisibleby is not supported"},
        Hostile{"Brackets", "{{ " + Times(50'000, "(") + "1" + Times(50'000, ")") + " }}", "chat_template: "},
        Hostile{"Nots", "{{ " + Times(50'000, "not ") + "1 }}", "more than 1000 tokens"},
        Hostile{"Blocks", Times(9'000, "{% if 1 %}") + Times(9'000, "{% endif %}"),
                "nests more than 100 deep"},
        Hostile{"Branches", "{% if 0 %}" + Times(9'000, "{% elif 0 %}") + "{% endif %}",
                "nests more than 100 deep"},
        Hostile{"FilterThatIsANumber", "{{ 1 | 5 }}", "the name of a filter or a test is missing"},
        Hostile{"FilterWithAMember", "{{ 1 | int(2).x }}", "the name of a filter or a test is missing"},
        Hostile{"TestThatIsAText", "{{ 1 is 'odd' }}", "the name of a filter or a test is missing"},
        Hostile{"FilterBlock", "{% filter 'a' %}b{% endfilter %}",
                "the name of a filter or a test is missing"},
        Hostile{"LoopOverANumber", "{% for 5 in [1] %}{% endfor %}", "Invalid loop variable"},
        Hostile{"MacroThatIsANumber", "{% macro 5() %}{% endmacro %}", "must be an identifier"},
        Hostile{"ArgumentThatIsANumber", "{{ range(5=3) }}", "must be identifiers"},
        Hostile{"Size", Times(300'000, "a"), "larger than 256 KiB"}),
    [](const auto& info) { return info.param.name; });

TEST(ChatTemplate, WithinLimitsEverythingIsAsItWas) {
  EXPECT_EQ(Rendered("{% for i in range(3) %}{{ i }}{% endfor %}"), "012");
  EXPECT_EQ(Rendered("{% for i in range(5, 0, -2) if i != 3 %}{{ i }}{% else %}none{% endfor %}"), "51");
  EXPECT_EQ(Rendered("{% set n = namespace(x='') %}{% for m in messages %}{% set n.x = n.x ~ m.role[0] %}{% "
                     "endfor %}{{ n.x }}"),
            "ua");
  EXPECT_EQ(Rendered("{{ messages[0].content.split(',')[-1] }}{{ 'ab' * 3 }}{{ "
                     "messages[0].content|replace(',', ';') }}"),
            "bababab"
            "a;b");
  EXPECT_EQ(Rendered("{% macro m(x, y=2) %}{{ x }}{{ y }}{% endmacro %}{{ m(1) }}{{ m(3, y=4) }}"), "1234");
  EXPECT_EQ(Rendered("{% set x = [3, 1] + [2] %}{{ x | sort | join('-') }}"), "1-2-3");
  EXPECT_EQ(Rendered("{% filter upper %}a{{ messages|length }}{% endfilter %}"), "A2");
  EXPECT_EQ(Rendered("{{ 'yes' if messages is defined and 'a' in messages[0].content else 'no' }}"), "yes");
  EXPECT_EQ(Rendered(Times(300, "{% if 1 %}x{% endif %}{% set a = 1 %}")), Times(300, "x"));
}

// The texts that Jinja2 renders for these beginnings, with transformers' settings.
TEST(ChatTemplate, ItsFirstCharacterIsThere) {
  const std::string loop = "{% for m in messages %}x{% endfor %}";
  for (const auto& [begin, text] : std::vector<std::pair<std::string, std::string>>{{"", "xx"},
                                                                                    {"\n", "\nxx"},
                                                                                    {"\n  ", "\nxx"},
                                                                                    {"#", "#xx"},
                                                                                    {"[ ", "[ xx"},
                                                                                    {"##", "##xx"},
                                                                                    {"\n\n", "\n\nxx"},
                                                                                    {"  ", "xx"},
                                                                                    {"\"", "\"xx"},
                                                                                    {"'", "'xx"},
                                                                                    {"\\", "\\xx"},
                                                                                    {"\t#", "\t#xx"},
                                                                                    {"#\n ", "#\nxx"}}) {
    EXPECT_EQ(Rendered(begin + loop), text) << begin;
  }
  EXPECT_EQ(Rendered("\n{%- if 1 %}x{% endif %}"), "x");
  EXPECT_EQ(Rendered("# {%- if 1 %}x{% endif %}"), "#x");
  EXPECT_EQ(Rendered("# {# no #}x"), "# x");
  EXPECT_EQ(Rendered("#{{ 1 }}"), "#1");
}

// A conversation of thousands of turns stays far from the limits.
TEST(ChatTemplate, ALongConversationIsRendered) {
  const auto chat_template = ChatTemplate::Load("models/tiny-target");
  ASSERT_TRUE(chat_template.ok());
  const std::vector<ChatMessage> messages(5000, {"user", std::string(400, 'x')});
  const auto text = (*chat_template)->Render({.messages = messages}, 0);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_GT(text->text.size(), 2'000'000);
}

class ChatRequest : public ::testing::Test {
 protected:
  ChatRequest() : tokenizer_(Tokenizer::Load("tests/data/text/gpt2-small.tokenizer.json").value()) {
    target_.set_vocab_size(static_cast<uint32_t>(tokenizer_->vocab_size()));
    target_.set_max_context(64);
    target_.set_kv_blocks(100);
    target_.set_block_size(16);
    defaults_.chat_template =
        ChatTemplate::Parse(
            "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}"
            "{{ raise_exception('no tools') }}{% endif %}{{ m.role + ': ' + m.content }}\n"
            "{% endfor %}",
            {{"bos_token", "<|endoftext|>"}})
            .value();
  }

  absl::StatusOr<Request> Parse() const { return ParseRequest(proto_, defaults_, *tokenizer_, target_); }
  void Say(const std::string& role, const std::string& content) {
    v1::ChatMessage* message = proto_.mutable_chat()->add_messages();
    message->set_role(role);
    message->set_content(content);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  v1::ServerInfo target_;
  RequestDefaults defaults_;
  v1::GenerateRequest proto_;
};

TEST_F(ChatRequest, SpecialTokensOfTheTemplateAreTokensAndNothingIsAdded) {
  Say("user", "The little boy");
  const Request request = Parse().value();
  std::vector<TokenId> expected = {*tokenizer_->TokenToId("<|endoftext|>")};
  const std::vector<TokenId> text = tokenizer_->Encode("user: The little boy\n", false).value();
  expected.insert(expected.end(), text.begin(), text.end());
  EXPECT_EQ(request.prompt, expected);
}

TEST_F(ChatRequest, WhatLooksLikeAControlTokenInAMessageIsText) {
  const TokenId end = *tokenizer_->TokenToId("<|endoftext|>");
  Say("user", "The <|endoftext|> boy");
  const std::vector<TokenId> text = Parse()->prompt;
  EXPECT_EQ(std::count(text.begin(), text.end(), end), 1) << "the template's own";
  EXPECT_EQ(tokenizer_->Decode(text, true), "user: The <|endoftext|> boy\n");
  defaults_.control_tokens_in_chat = true;
  const std::vector<TokenId> tokens = Parse()->prompt;
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), end), 2);
}

TEST_F(ChatRequest, ARoleThatTheTemplateDoesNotKnowHasItsOlderName) {
  Say("developer", "x");
  EXPECT_EQ(tokenizer_->Decode(Parse()->prompt, true), "system: x\n");
  defaults_.chat_template = ChatTemplate::Parse("{{ messages[0].role }}{# developer #}", {}).value();
  EXPECT_EQ(tokenizer_->Decode(Parse()->prompt, true), "developer");
}

TEST_F(ChatRequest, WhatTheTemplateRefusesIsRefusedInItsWords) {
  Say("tool", "42");
  const absl::Status status = Parse().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("chat.messages"), HasSubstr("no tools")));
}

TEST_F(ChatRequest, AConversationNeedsATurnARoleAndATemplate) {
  proto_.mutable_chat();
  EXPECT_THAT(std::string(Parse().status().message()), HasSubstr("chat.messages: empty"));
  for (const char* role : {"", "narrator", "user|>"}) {
    proto_.clear_chat();
    Say(role, "words");
    EXPECT_THAT(std::string(Parse().status().message()), HasSubstr("chat.messages.role")) << role;
  }
  proto_.clear_chat();
  Say("user", "words");
  proto_.mutable_chat()->mutable_messages(0)->add_parts("more");
  EXPECT_THAT(std::string(Parse().status().message()), HasSubstr("chat.messages.parts: both"));
  defaults_.chat_template = nullptr;
  EXPECT_THAT(std::string(Parse().status().message()), HasSubstr("no chat template"));
}

}  // namespace
}  // namespace outrider
