// What XGrammar says. It is compiled with XGRAMMAR_LOG_CUSTOMIZE, so that its messages come here instead of
// stderr.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace outrider {

// Collects what the library warns of on this thread while it lives; one at a time. Warnings at other times,
// as a matcher's, are dropped: nobody would read them.
class XGrammarWarnings {
 public:
  XGrammarWarnings();
  ~XGrammarWarnings();
  XGrammarWarnings(const XGrammarWarnings&) = delete;
  XGrammarWarnings& operator=(const XGrammarWarnings&) = delete;

  const std::optional<std::string>& first() const { return first_; }

 private:
  friend struct XGrammarLog;
  std::optional<std::string> first_;
};

// The library's words or a client's on one line: valid UTF-8, of at most some hundred bytes, without control
// characters and the condition that a failed check begins with.
std::string OneLine(absl::string_view words);

}  // namespace outrider
