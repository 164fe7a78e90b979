// Parses a model's chat template, and renders a conversation with it.
#include "coordinator/api/chat_template.h"

#include "tests/fuzz/target.h"

namespace outrider {

void FuzzTarget(std::string_view bytes) {
  const auto chat_template = ChatTemplate::Parse(std::string(bytes), {{"bos_token", "<s>"}});
  if (!chat_template.ok()) return;
  Conversation chat{.messages = {{"system", "Be kind. "}, {"user", "What\nis 1?"}, {"assistant", " So "}},
                    .variables = R"({"x": [1, "two"]})"};
  for (const bool goes_on : {false, true}) {
    chat.continue_final_message = goes_on;
    (*chat_template)->Render(chat, 0).IgnoreError();
  }
}

}  // namespace outrider
