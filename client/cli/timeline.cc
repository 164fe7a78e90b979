#include "client/cli/timeline.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/cli/render.h"
#include "common/rpc/drafters.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

// Sizes in pixels.
constexpr double kLeft = 70, kWidth = 1400, kRight = 20;
constexpr double kHeading = 34, kLine = 22, kBar = 16, kAxis = 30;
constexpr double kCountWidth = 14;  // that a round needs for the number of its tokens
constexpr double kLeastTick = 60;   // between two numbers of the axis

constexpr char kStyle[] =
    "<style>text{font:12px sans-serif;fill:#333}.count{font-size:10px;text-anchor:middle}"
    ".tick{font-size:10px;text-anchor:middle}.wait{fill:#ddd}.draft{fill:#4c72b0}.target{fill:#55a868}"
    "line{stroke:#bbb}</style>\n";

std::string Escaped(std::string_view text) {
  return absl::StrReplaceAll(WithoutControls(text), {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

double Total(const TracedAnswer& answer) {
  double microseconds = 0;
  for (const v1::RoundTrace& round : answer.rounds) microseconds += round.round_us();
  return microseconds;
}

std::string TitleOf(const v1::RoundTrace& round) {
  std::string title = absl::StrFormat("round %d: %.2f ms", round.round(), round.round_us() / 1e3);
  if (round.drafted_size() > 0) {
    absl::StrAppendFormat(&title, "; drafted %d, accepted %d: %s", round.drafted_size(), round.accepted(),
                          absl::StrJoin(round.drafted_text(), "|"));
  }
  absl::StrAppend(&title, "; ", NameOf(round.kind()), ": ", round.token_text());
  if (round.drafted_ahead()) absl::StrAppend(&title, "; begun during the round before");
  return Escaped(OnOneLine(title));
}

// Draws with a scale of time.
class Canvas {
 public:
  explicit Canvas(double microseconds) : scale_(kWidth / std::max(microseconds, 1.0)) {}

  void Add(const TracedAnswer& answer) {
    Text("", 4, y_ + 20,
         absl::StrFormat("%s: %.1f ms, %d rounds", answer.name, Total(answer) / 1e3, answer.rounds.size()));
    y_ += kHeading;
    Text("", 4, y_ + 12, "draft");
    Text("", 4, y_ + kLine + 12, "target");
    double start = 0;
    for (const v1::RoundTrace& round : answer.rounds) {
      absl::StrAppend(&svg_, "<g class=\"round\"><title>", TitleOf(round), "</title>");
      Bar(0, "draft", start, round.draft_us(), round.draft_compute_us());
      Bar(kLine, "target", start + round.draft_us(), round.verify_us(), round.verify_compute_us());
      const double width = round.round_us() * scale_;
      if (width >= kCountWidth) {
        Text("count", kLeft + start * scale_ + width / 2, y_ - 3, absl::StrCat(round.accepted() + 1));
      }
      absl::StrAppend(&svg_, "</g>\n");
      start += round.round_us();
    }
    y_ += 2 * kLine;
  }

  std::string Finish() && {
    const double step = TickStep();
    for (double at = 0; at * scale_ <= kWidth; at += step) {
      const double x = kLeft + at * scale_;
      absl::StrAppendFormat(&svg_, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", x, x, y_,
                            y_ + 5);
      Text("tick", x, y_ + 18, absl::StrFormat("%g ms", at / 1e3));
    }
    return absl::StrFormat(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\">\n%s"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n%s\n</svg>\n",
        kLeft + kWidth + kRight, y_ + kAxis, kStyle, svg_);
  }

 private:
  // 1, 2 or 5 times a power of ten, at least a millisecond.
  double TickStep() const {
    for (double power = 1e3;; power *= 10) {
      for (const double step : {power, 2 * power, 5 * power}) {
        if (step * scale_ >= kLeastTick) return step;
      }
    }
  }

  void Text(std::string_view kind, double x, double y, const std::string& text) {
    absl::StrAppendFormat(&svg_, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\">%s</text>", kind, x, y,
                          Escaped(text));
  }

  // A wait of `microseconds` from `start` on. Its part on the wire is taken to be as long before the
  // computation as after it.
  void Bar(double below, std::string_view kind, double start, double microseconds, double computed) {
    if (microseconds <= 0) return;
    Rectangle("wait", start, microseconds, y_ + below);
    const double inside = std::min(computed, microseconds);
    Rectangle(kind, start + (microseconds - inside) / 2, inside, y_ + below);
  }

  void Rectangle(std::string_view kind, double start, double microseconds, double y) {
    absl::StrAppendFormat(&svg_, "<rect class=\"%s\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%g\"/>",
                          kind, kLeft + start * scale_, y, microseconds * scale_, kBar);
  }

  const double scale_;  // pixels a microsecond
  double y_ = 0;
  std::string svg_;
};

}  // namespace

std::string TimelineSvg(absl::Span<const TracedAnswer> answers) {
  double longest = 0;
  for (const TracedAnswer& answer : answers) longest = std::max(longest, Total(answer));
  Canvas canvas(longest);
  for (const TracedAnswer& answer : answers) canvas.Add(answer);
  return std::move(canvas).Finish();
}

absl::Status WriteTimeline(const std::string& file, absl::Span<const TracedAnswer> answers) {
  std::ofstream out(file, std::ios::binary);
  out << TimelineSvg(answers);
  out.close();
  if (out) return absl::OkStatus();
  return Invalid(absl::StrCat(file, " cannot be written: ", std::strerror(errno)));
}

}  // namespace outrider
