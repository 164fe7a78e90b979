// A picture of the time that the rounds of an answer take, after Figure 5 of Leviathan et al. (arXiv
// 2211.17192).
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

struct TracedAnswer {
  std::string name;
  std::vector<v1::RoundTrace> rounds;  // in order
};

// An SVG document. The answers stand below each other, on one scale of time. Each has a line for the draft
// and one for the target. A round is a bar on either: the wait for the server, with what the server reports
// to have computed drawn in its middle. Its title has the tokens. A proposal that was begun during the
// verification before shows only the part that was waited for.
std::string TimelineSvg(absl::Span<const TracedAnswer> answers);

// Replaces the file. The error names it.
absl::Status WriteTimeline(const std::string& file, absl::Span<const TracedAnswer> answers);

}  // namespace outrider
