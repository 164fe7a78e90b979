// Shows an answer as text for people, and where each token came from.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "client/sdk/client.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

struct OutputStyle {
  bool terminal = false;  // control characters in the text are made harmless
  bool colour = false;
};

// Looks at standard output, NO_COLOR and TERM.
OutputStyle StyleOfStandardOutput();

class Renderer {
 public:
  explicit Renderer(OutputStyle style) : style_(style) {}

  // The line that explains the output of Chunk, or of Round. Empty for Chunk without colour.
  std::string Legend() const;
  std::string RoundLegend() const;

  std::string Prompt(std::string_view prompt) const;
  // The text of a chunk; unchanged without colour.
  std::string Chunk(const v1::GenerateResponse& chunk) const;
  // A line for the round of a chunk that has a trace, as in Figure 1 of Leviathan et al. (arXiv 2211.17192):
  // kept tokens, rejected ones, and the target's own. Tokens that were not judged or not committed count as
  // rejected. For a tree, a line for each node follows.
  std::string Round(const v1::GenerateResponse& chunk) const;

 private:
  std::string Paint(std::string_view text, v1::TokenKind kind) const;
  std::string Rejected(std::string_view text) const;
  // The target's own token in the line of a round.
  std::string TargetToken(std::string_view text, v1::TokenKind kind) const;
  std::string Tree(const v1::RoundTrace& trace, int committed) const;

  OutputStyle style_;
};

// a / b, or 0 if b is 0.
double Quotient(auto a, auto b) { return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 0.0; }

// One line, without a line end: tokens, time to the first token, tokens/s after it, target calls, tokens per
// call, acceptance.
std::string Summary(const v1::Finish& finish);

// Compares plain decoding of the same request with `drafted`. Two lines, without the last line end.
std::string Comparison(const Completion& drafted, const Completion& plain);

// Shows line ends and tabs as signs.
std::string OnOneLine(std::string_view text);

// Replaces control characters, which could steer the terminal, except tab and line feed. UTF-8 in and out.
std::string WithoutControls(std::string_view text);

// What commands print under --json: one object on one line, without a line end. Scripts read it, so names
// must not change. For several samples it is {"samples": [...]} with an object for each.
std::string ToJson(const std::vector<Completion>& samples);
std::string ToJson(const v1::DescribeResponse& description);

}  // namespace outrider
