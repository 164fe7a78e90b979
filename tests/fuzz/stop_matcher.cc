// Finds stop strings in a text. The match and the emitted text do not depend on how the text is cut.
#include "common/text/stop_matcher.h"

#include "tests/fuzz/target.h"

namespace outrider {
namespace {

struct Result {
  std::string emitted;
  std::optional<StopMatch> match;
};

Result Run(StopMatcher matcher, std::string_view text, size_t piece) {
  Result result;
  for (size_t at = 0; at < text.size(); at += piece) result.emitted += matcher.Append(text.substr(at, piece));
  result.emitted += matcher.Flush();
  result.match = matcher.match();
  return result;
}

}  // namespace

void FuzzTarget(std::string_view bytes) {
  Input input(bytes);
  const size_t piece = 2 + input.Byte();
  std::vector<std::string> stops(input.Byte() % 4);
  for (std::string& stop : stops) stop = input.Text();
  const absl::StatusOr<StopMatcher> matcher = StopMatcher::Create(stops);
  if (!matcher.ok()) return;
  const Result cut = Run(*matcher, input.rest(), piece);
  const Result bytewise = Run(*matcher, input.rest(), 1);
  Require(cut.emitted == bytewise.emitted, "the same text is emitted");
  Require(cut.match.has_value() == bytewise.match.has_value(), "the same is found");
  Require(cut.emitted == input.rest().substr(0, cut.emitted.size()), "what is emitted begins the text");
  if (!cut.match) {
    Require(cut.emitted.size() == input.rest().size(), "without a match all is emitted");
    for (const std::string& stop : stops) {
      Require(input.rest().find(stop) == std::string_view::npos, "a stop string that is there is found");
    }
    return;
  }
  Require(cut.match->stop_index == bytewise.match->stop_index, "the same stop string is found");
  Require(cut.match->text_size == cut.emitted.size(), "nothing of a stop string is emitted");
  Require(
      input.rest().substr(cut.emitted.size()).starts_with(stops[static_cast<size_t>(cut.match->stop_index)]),
      "the stop string follows");
}

}  // namespace outrider
