// A model's chat template, and a conversation through it.
#include "coordinator/api/chat_template.h"

#include "tests/fuzz/target.h"

namespace outrider {

void FuzzTarget(std::string_view bytes) {
  const auto chat_template = ChatTemplate::Parse(std::string(bytes), {{"bos_token", "<s>"}});
  if (!chat_template.ok()) return;
  const ChatMessage messages[] = {{"system", "Be kind. "}, {"user", "What\nis 1?"}, {"assistant", ""}};
  (*chat_template)->Render(messages, 0).IgnoreError();
}

}  // namespace outrider
