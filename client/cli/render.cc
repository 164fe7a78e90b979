#include "client/cli/render.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace outrider {
namespace {

constexpr char kReset[] = "\033[0m";
constexpr char kDim[] = "\033[2m";
constexpr char kRejected[] = "\033[9;31m";

// The colours of the figure: green for what was kept, blue for the target's corrections.
const char* ColourOf(v1::TokenKind kind) {
  switch (kind) {
    case v1::TOKEN_KIND_ACCEPTED:
      return "\033[32m";
    case v1::TOKEN_KIND_CORRECTED:
      return "\033[1;34m";
    case v1::TOKEN_KIND_BONUS:
      return "\033[1;35m";
    default:
      return "";
  }
}

std::string OnOneLine(std::string_view text) {
  return absl::StrReplaceAll(std::string(text), {{"\n", "↵"}, {"\r", "␍"}, {"\t", "⇥"}});
}

}  // namespace

OutputStyle StyleOfStandardOutput() {
  const auto variable = [](const char* name) {
    const char* value = getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  return {terminal, terminal && variable("NO_COLOR").empty() && variable("TERM") != "dumb"};
}

std::string WithoutControls(std::string_view text) {
  std::string clean;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F steer terminals as well.
    const bool wide = byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (wide) ++i;
    if (wide || byte == 0x7F || (byte < 0x20 && byte != '\n' && byte != '\t')) {
      clean += "\uFFFD";
    } else {
      clean += text[i];
    }
  }
  return clean;
}

std::string Renderer::Paint(std::string_view text, v1::TokenKind kind) const {
  const std::string shown = style_.terminal ? WithoutControls(text) : std::string(text);
  const std::string colour = style_.colour ? ColourOf(kind) : "";
  if (colour.empty() || shown.empty()) return shown;
  return absl::StrCat(colour, shown, kReset);
}

std::string Renderer::Legend() const {
  if (!style_.colour) return "";
  return absl::StrCat(Paint("accepted", v1::TOKEN_KIND_ACCEPTED), " from the draft, ",
                      Paint("corrected", v1::TOKEN_KIND_CORRECTED), ", ",
                      Paint("bonus", v1::TOKEN_KIND_BONUS), " and plain from the target\n");
}

std::string Renderer::RoundLegend() const {
  if (!style_.colour)
    return "a line a round: accepted [-rejected-] {+corrected+} {*bonus*} plain; "
           "> begun while the round before was verified\n";
  return absl::StrCat("a line a round: ", Paint("accepted", v1::TOKEN_KIND_ACCEPTED), " ", kRejected,
                      "rejected", kReset, " ", Paint("corrected", v1::TOKEN_KIND_CORRECTED), " ",
                      Paint("bonus", v1::TOKEN_KIND_BONUS),
                      " plain; > begun while the round before was verified\n");
}

std::string Renderer::Prompt(std::string_view prompt) const {
  const std::string shown = style_.terminal ? WithoutControls(prompt) : std::string(prompt);
  return style_.colour ? absl::StrCat(kDim, shown, kReset) : shown;
}

std::string Renderer::Chunk(const v1::GenerateResponse& chunk) const {
  std::string text;
  for (const v1::GeneratedToken& token : chunk.tokens()) text += Paint(token.text(), token.kind());
  return text;
}

std::string Renderer::Rejected(std::string_view text) const {
  if (text.empty()) return "";
  const std::string shown = style_.terminal ? WithoutControls(text) : std::string(text);
  return style_.colour ? absl::StrCat(kRejected, shown, kReset) : absl::StrCat("[-", shown, "-]");
}

// A line for each node, each below the one that it follows.
std::string Renderer::Tree(const v1::RoundTrace& trace, int committed) const {
  const std::set<uint32_t> kept(trace.path().begin(),
                                trace.path().begin() + std::min(committed, trace.path_size()));
  std::string lines;
  const auto draw = [&](const auto& self, int parent, const std::string& indent) -> void {
    std::vector<int> children;
    for (int i = 0; i < trace.parents_size(); ++i) {
      if (trace.parents(i) == parent) children.push_back(i);
    }
    for (const int child : children) {
      const bool last = child == children.back();
      const std::string text = OnOneLine(trace.drafted_text(child));
      absl::StrAppend(
          &lines, indent, last ? "└ " : "├ ",
          kept.contains(static_cast<uint32_t>(child)) ? Paint(text, v1::TOKEN_KIND_ACCEPTED) : Rejected(text),
          "\n");
      self(self, child, indent + (last ? "  " : "│ "));
    }
  };
  draw(draw, -1, "      ");
  return lines;
}

std::string Renderer::Round(const v1::GenerateResponse& chunk) const {
  const v1::RoundTrace& trace = chunk.trace();
  const bool is_tree = trace.parents_size() > 0;
  const auto committed = static_cast<int>(
      std::count_if(chunk.tokens().begin(), chunk.tokens().end(),
                    [](const v1::GeneratedToken& token) { return token.kind() == v1::TOKEN_KIND_ACCEPTED; }));
  std::string kept;
  std::string rejected;
  for (int i = 0; i < std::min(committed, trace.path_size()); ++i) {
    kept += OnOneLine(trace.drafted_text(static_cast<int>(trace.path(i))));
  }
  for (int i = 0; i < trace.drafted_text_size() && !is_tree; ++i) {
    (i < committed ? kept : rejected) += OnOneLine(trace.drafted_text(i));
  }
  std::string line = absl::StrFormat("%4d%s ", trace.round(), trace.drafted_ahead() ? ">" : " ");
  line += Paint(kept, v1::TOKEN_KIND_ACCEPTED);
  line += Rejected(rejected);
  if (chunk.tokens_size() > committed) {
    const std::string own = OnOneLine(trace.token_text());
    const bool brackets = !style_.colour;
    const bool corrected = trace.kind() == v1::TOKEN_KIND_CORRECTED;
    const bool bonus = trace.kind() == v1::TOKEN_KIND_BONUS;
    if (brackets && corrected) {
      line += absl::StrCat("{+", Paint(own, trace.kind()), "+}");
    } else if (brackets && bonus) {
      line += absl::StrCat("{*", Paint(own, trace.kind()), "*}");
    } else {
      line += Paint(own, trace.kind());
    }
  }
  return line + "\n" + Tree(trace, committed);
}

std::string Summary(const v1::Finish& finish) {
  const v1::Usage& usage = finish.usage();
  const v1::SpeculationStats& stats = finish.speculation();
  const double seconds = usage.first_token_seconds() + usage.decode_seconds();
  const auto tokens = static_cast<double>(usage.completion_tokens());
  std::string line = absl::StrFormat(
      "%d tokens in %.2f s, %.1f tokens/s; %d target calls, %.2f tokens a call; ", usage.completion_tokens(),
      seconds, seconds > 0 ? tokens / seconds : 0.0, stats.rounds(),
      stats.rounds() > 0 ? tokens / static_cast<double>(stats.rounds()) : 0.0);
  if (stats.drafted() == 0) return line + "nothing was drafted";
  absl::StrAppendFormat(&line, "acceptance %.1f %% (%d of %d drafted)", 100 * stats.acceptance_rate(),
                        stats.accepted(), stats.drafted());
  if (stats.tree_rounds() > 0) {
    absl::StrAppendFormat(&line, "; %d trees", stats.tree_rounds());
  }
  if (stats.ahead_rounds() > 0) {
    absl::StrAppendFormat(&line, "; ran ahead, %d of %d rounds foreseen", stats.ahead_hits(),
                          stats.ahead_rounds());
  }
  return line;
}

}  // namespace outrider
