// The fields of a request that let the model call tools, and the grammar that holds its calls to their form.
#pragma once

#include <string>
#include <vector>

#include "coordinator/openai/json_fields.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// What a conversation's answer may call.
struct ToolUse {
  enum class Choice { kNone, kAuto, kRequired, kNamed };
  struct Function {
    std::string name;
    OrderedJson parameters;  // a JSON Schema
    bool strict = false;     // arguments are held to it under kAuto too
  };

  std::vector<Function> functions = {};  // of kNamed the one, of kNone none
  Choice choice = Choice::kNone;
  bool parallel = true;  // several calls in one answer

  bool forced() const { return choice == Choice::kRequired || choice == Choice::kNamed; }
};

// OpenAI's `tools`, `tool_choice` and `parallel_tool_calls`. The template is told of the tools unless
// none may be called. Errors go to `fields`.
ToolUse ParseToolFields(JsonFields& fields, v1::ChatPrompt* chat);

// Holds the answer to calls in a model's format, as far as `tools` asks for it. A JSON Schema that was asked
// for is for answers that call nothing. Returns whether `sampling` has such a grammar now. INVALID_ARGUMENT
// if calls are forced and there is a grammar of another form.
absl::StatusOr<bool> HoldToTools(const ToolUse& tools, v1::ToolFormat format, v1::SamplingParams* sampling);

}  // namespace outrider
