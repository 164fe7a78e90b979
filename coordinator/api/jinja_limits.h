// Bounds what a chat template takes: llama.cpp's Jinja engine has no limits, and a template comes with a
// model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "jinja/lexer.h"
#include "jinja/runtime.h"

namespace outrider {

// Throws std::runtime_error for a template that is larger, or nests deeper, than the stack of the engine's
// parser allows.
void CheckTokens(const std::string& source, const jinja::lexer_result& tokens);

// The limits of one rendering. Replaces the nodes of a program by equivalent ones that count steps, sizes of
// values, and nested calls. Exceeding a limit ends the rendering with a jinja::raised_exception. One thread.
class JinjaLimits {
 public:
  // The program must not be used after this object is gone.
  void Bound(jinja::program* program);
  // Replaces those parts of `context` that cannot be bounded from outside.
  void Bound(jinja::context* context);

  // For the nodes.
  [[noreturn]] static void Fail(const std::string& what);
  void Spend(uint64_t work);
  void SpendStep();
  // Charges for a walk over the whole value. Parts that are shared count each time.
  void Measure(const jinja::value& value, int depth = 0);
  // Call before a function or filter is called. `input` may be null.
  void CheckCall(const std::string& name, const jinja::value& input,
                 const std::vector<jinja::value>& arguments);
  // Call before `value` becomes a part of `container`; ensures that no container contains itself.
  void CheckInsert(const jinja::value& container, const jinja::value& value, int depth = 0);
  int& calls() { return calls_; }

 private:
  uint64_t work_ = 0;
  uint64_t step_ = 0;  // cost of one step
  int calls_ = 0;
};

}  // namespace outrider
