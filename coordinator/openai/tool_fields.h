// The fields of a request that let the model call tools, and the grammar that constrains its calls.
#pragma once

#include <string>
#include <vector>

#include "coordinator/openai/json_fields.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// The tools that an answer may call.
struct ToolUse {
  enum class Choice { kNone, kAuto, kRequired, kNamed };
  struct Function {
    std::string name;
    OrderedJson parameters;  // a JSON Schema
    bool strict = false;     // constrains the arguments under kAuto, too
  };

  std::vector<Function> functions = {};  // kNamed: only that one; kNone: empty
  Choice choice = Choice::kNone;
  bool parallel = true;  // several calls in one answer

  bool forced() const { return choice == Choice::kRequired || choice == Choice::kNamed; }
};

// Parses OpenAI's `tools`, `tool_choice` and `parallel_tool_calls`. Adds the tools to `chat` unless none may
// be called. Errors go to `fields`.
ToolUse ParseToolFields(JsonFields& fields, v1::ChatPrompt* chat);

// Constrains the answer to calls in the model's format, as far as `tools` asks for it. A JSON Schema that the
// request has then applies only to answers without calls. Returns whether `sampling` now has a grammar for
// calls. INVALID_ARGUMENT if calls are forced and the request has a grammar of another form.
absl::StatusOr<bool> ConstrainToTools(const ToolUse& tools, v1::ToolFormat format,
                                      v1::SamplingParams* sampling);

}  // namespace outrider
