// Bounds what a chat template takes: llama.cpp's Jinja engine has no limits, and a template comes with a
// model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "jinja/lexer.h"
#include "jinja/runtime.h"

namespace outrider {

// Throws std::runtime_error for a template that is larger, or nests deeper, than the engine's parser can
// follow down the stack.
void CheckTokens(const std::string& source, const jinja::lexer_result& tokens);

// The limits of one rendering. Replaces the nodes of a program by ones that do the same, and count: steps,
// sizes of values, and calls inside calls. What exceeds a limit ends the rendering with a
// jinja::raised_exception. One thread.
class JinjaLimits {
 public:
  // The program is not used after this object.
  void Bound(jinja::program* program);
  // Replaces what `context` has to offer and cannot be bounded from outside.
  void Bound(jinja::context* context);

  // For the nodes.
  [[noreturn]] static void Fail(const std::string& what);
  void Spend(uint64_t work);
  void SpendStep();
  // Spends what a walk over the whole value costs, which may be more than its parts: they can be shared.
  void Measure(const jinja::value& value, int depth = 0);
  // Before a function or filter is called. `input` may be null.
  void CheckCall(const std::string& name, const jinja::value& input,
                 const std::vector<jinja::value>& arguments);
  // Before `value` becomes a part of `container`, which would otherwise contain itself.
  void CheckInsert(const jinja::value& container, const jinja::value& value, int depth = 0);
  int& calls() { return calls_; }

 private:
  uint64_t work_ = 0;
  uint64_t step_ = 0;  // what one costs
  int calls_ = 0;
};

}  // namespace outrider
