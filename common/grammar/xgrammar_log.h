// Receives XGrammar's messages. XGrammar is compiled with XGRAMMAR_LOG_CUSTOMIZE, so that they come here and
// not to stderr.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace outrider {

// Keeps the library's first warning on this thread while it lives. A thread has at most one. Warnings at
// other times, such as a matcher's, are dropped: nobody would read them.
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

// A message of the library or of a client on one line: valid UTF-8 of at most some hundred bytes, without
// control characters and without the condition that begins the message of a failed check.
std::string OneLine(absl::string_view words);

}  // namespace outrider
