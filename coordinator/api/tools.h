// Tools in conversations, and what a model's chat template makes of them.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/api/chat_template.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// How a model with this template writes calls; UNSPECIFIED without a template.
v1::ToolFormat ToolFormatOf(const ChatTemplate* chat_template);

// INVALID_ARGUMENT unless it is ChatPrompt.tools.
absl::Status CheckTools(const std::string& tools);

// Makes the conversation, which has been checked, one that the template takes: arguments of calls become
// objects, and what the template does not know becomes text of messages: the tools, calls of earlier answers,
// what tools said.
void AdaptTools(const ChatTemplate& chat_template, Conversation* chat);

}  // namespace outrider
