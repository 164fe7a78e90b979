// Splits a text by a tokenizer's pattern. Matches have whole characters, and follow each other in the text.
#include "common/text/regex.h"
#include "common/text/utf8.h"
#include "tests/fuzz/target.h"

namespace outrider {

void FuzzTarget(std::string_view bytes) {
  Input input(bytes);
  const std::string pattern = input.Text();
  const auto translated = PcreFromOniguruma(pattern);
  if (!translated.ok()) return;
  const auto regex = Regex::Compile(*translated, Regex::Syntax::kPattern);
  if (!regex.ok()) return;
  const std::string text = LossyUtf8(input.rest());
  size_t done = 0;
  const absl::Status status = regex->ForEachMatch(text, [&](size_t begin, size_t end) {
    Require(done <= begin && begin <= end && end <= text.size(), "matches follow each other");
    Require(IsValidUtf8(text.substr(begin, end - begin)), "a match has whole characters");
    done = end;
  });
  Require(status.ok() || absl::IsResourceExhausted(status), "only the time can run out");
}

}  // namespace outrider
