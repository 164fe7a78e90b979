// Tools in conversations, adapted to the support for them in a model's chat template.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/api/chat_template.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// The format in which a model with this template calls tools; UNSPECIFIED without a template.
v1::ToolFormat ToolFormatOf(const ChatTemplate* chat_template);

// INVALID_ARGUMENT unless `tools` is valid as ChatPrompt.tools.
absl::Status CheckTools(const std::string& tools);

// Adapts the conversation, which has been checked, to the template. Arguments of calls become JSON objects.
// Tools, calls of earlier answers and tools' results become text of messages if the template does not support
// them.
void AdaptTools(const ChatTemplate& chat_template, Conversation* chat);

}  // namespace outrider
