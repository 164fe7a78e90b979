// Chat templates as models publish them, rendered as in transformers. This repository may not distribute
// them: scripts/install unpacks them, and tests/data/chat/published.json has hashes of what they render
// (scripts/goldens/published_chat.py).
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_replace.h"
#include "coordinator/api/chat_template.h"
#include "tests/unit/chat_goldens.h"

namespace outrider {
namespace {

using ::testing::UnorderedElementsAre;
using Json = nlohmann::json;

// The rendered text or the refusal, also in the form of the goldens.
struct Rendering {
  std::string text;
  Json golden;
};

Rendering Render(const ChatTemplate& chat_template, const Json& conversation, std::time_t now) {
  const auto text = chat_template.Render({.messages = Messages(conversation)}, now);
  if (text.ok()) return {text->text, {{"bytes", text->text.size()}, {"sha256", Sha256(text->text)}}};
  const std::string refusal(text.status().message());
  return {"refused: " + refusal, {{"refused", Sha256(refusal)}}};
}

class PublishedTemplates : public ::testing::Test {
 protected:
  std::unique_ptr<const ChatTemplate> Parse(const std::string& source) const {
    return ChatTemplate::Parse(source, goldens_["special_tokens"]).value();
  }
  // How many conversations have another text or refusal than in transformers. Reports each of them if `tell`.
  int Differences(const std::string& name, const std::string& source, bool tell) const {
    const auto chat_template = Parse(source);
    int different = 0;
    for (size_t i = 0; i < goldens_["conversations"].size(); ++i) {
      const Json& conversation = goldens_["conversations"][i];
      const Rendering ours = Render(*chat_template, conversation, goldens_["now"]);
      const Json& theirs = published_[name]["goldens"][i];
      if (ours.golden == theirs) continue;
      ++different;
      if (tell)
        ADD_FAILURE() << name << conversation << "\nour text: " << ours.text << "\ntransformers': " << theirs;
    }
    return different;
  }

  const Json goldens_ = ChatGoldens();
  const Json published_ = Json::parse(std::ifstream("tests/data/chat/published.json"));
};

TEST_F(PublishedTemplates, WriteWhatTransformersWritesAndRefuseWhatItRefuses) {
  ASSERT_EQ(goldens_["conversations"].size(), 30U);
  std::set<std::string> families;
  for (const auto& [name, published] : published_.items()) {
    const std::string source = PublishedSource(name);
    ASSERT_EQ(Sha256(source), published["sha256"]) << name << " is another version than that of the goldens";
    EXPECT_EQ(published["goldens"].size(), goldens_["conversations"].size());
    EXPECT_EQ(Differences(name, source, /*tell=*/true), 0);
    families.insert(published["family"]);
  }
  EXPECT_THAT(families, UnorderedElementsAre("Llama 3", "Qwen 2.5", "Qwen 3", "Mistral", "Gemma 2"));
}

// A negative control: a template with another character in its text, and one with another in its date.
TEST_F(PublishedTemplates, AnotherTemplateIsNoticedInEachConversation) {
  const int all = static_cast<int>(goldens_["conversations"].size());
  const std::string qwen = "Qwen-Qwen3-0.6B", llama = "meta-llama-Llama-3.2-3B-Instruct";
  const std::string changed =
      absl::StrReplaceAll(PublishedSource(qwen), {{"<|im_start|>assistant\\n", "<|im_start|>assistant "}});
  EXPECT_EQ(Differences(qwen, changed, /*tell=*/false), all);
  EXPECT_EQ(Differences(llama, absl::StrReplaceAll(PublishedSource(llama), {{"%d %b %Y", "%d %B %Y"}}),
                        /*tell=*/false),
            all);
}

// Another refusal is noticed too.
TEST_F(PublishedTemplates, OtherWordsOfARefusalAreNoticed) {
  const std::string gemma = "google-gemma-2-2b-it";
  const std::string changed = absl::StrReplaceAll(PublishedSource(gemma), {{"not supported", "unknown"}});
  EXPECT_GT(Differences(gemma, changed, /*tell=*/false), 0);
}

}  // namespace
}  // namespace outrider
