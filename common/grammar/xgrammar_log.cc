#include "common/grammar/xgrammar_log.h"

#include <support/logging.h>

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "common/spec/status.h"
#include "common/text/utf8.h"

namespace outrider {
namespace {

constexpr size_t kMaxWords = 300;
constexpr absl::string_view kFailed = ") is false: ";

thread_local XGrammarWarnings* collecting = nullptr;

// Like the library's own error, which it catches where it parses JSON, but without the time and the place in
// its sources.
class FatalError final : public xgrammar::LogFatalError {
 public:
  explicit FatalError(const std::string& message) : LogFatalError("", 0, message), message_(message) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

}  // namespace

struct XGrammarLog {
  static void Warn(const std::string& message) {
    if (collecting != nullptr && !collecting->first_) collecting->first_ = message;
  }
};

XGrammarWarnings::XGrammarWarnings() { collecting = this; }
XGrammarWarnings::~XGrammarWarnings() { collecting = nullptr; }

std::string OneLine(absl::string_view words) {
  if (absl::StartsWith(words, "Check failed: (") || absl::StartsWith(words, "Internal check failed: (")) {
    if (const size_t end = words.find(kFailed); end != words.npos) words.remove_prefix(end + kFailed.size());
  }
  // The excerpt is taken first, since the message may quote a whole grammar.
  std::string line = LossyUtf8(Excerpt(absl::StripAsciiWhitespace(words), kMaxWords));
  for (char& c : line) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = ' ';
  }
  return line;
}

}  // namespace outrider

namespace xgrammar {

void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw outrider::FatalError(message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  if (level >= XGRAMMAR_LOG_LEVEL_WARNING) outrider::XGrammarLog::Warn(message);
}

}  // namespace xgrammar
