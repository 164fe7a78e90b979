#include "common/text/pre_tokenizer.h"

#include <deque>
#include <string>
#include <utility>

#include "common/text/split_pattern.h"
#include "common/text/strings.h"

namespace outrider {
namespace {

absl::Status SplitPiece(std::string_view piece, const SplitStep& step, const Regex& regex,
                        std::vector<std::string_view>* out) {
  auto emit = [&](size_t begin, size_t end, bool removed) {
    if (begin != end && !removed) out->push_back(piece.substr(begin, end - begin));
  };
  size_t done = 0;
  absl::Status status = regex.ForEachMatch(piece, [&](size_t begin, size_t end) {
    if (step.join_previous) {
      emit(done, end, false);
    } else {
      emit(done, begin, step.remove_between);
      emit(begin, end, step.remove_matches);
    }
    done = end;
  });
  emit(done, piece.size(), step.remove_between);
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const PreTokenizer>> PreTokenizer::Create(
    const std::vector<SplitStep>& specs) {
  std::vector<Step> steps;
  for (const SplitStep& spec : specs) {
    Step step{.spec = spec, .regex = std::nullopt};
    if (spec.kind == SplitStep::Kind::kRegex || spec.kind == SplitStep::Kind::kString) {
      const bool literal = spec.kind == SplitStep::Kind::kString;
      absl::StatusOr<std::string> pattern = literal ? spec.pattern : PcreFromOniguruma(spec.pattern);
      if (!pattern.ok()) return pattern.status();
      absl::StatusOr<Regex> regex =
          Regex::Compile(*pattern, literal ? Regex::Syntax::kLiteral : Regex::Syntax::kPattern);
      if (!regex.ok()) return regex.status();
      step.regex = *std::move(regex);
    }
    steps.push_back(std::move(step));
  }
  return std::unique_ptr<const PreTokenizer>(new PreTokenizer(std::move(steps)));
}

absl::Status PreTokenizer::Split(std::string_view text, bool at_start,
                                 absl::FunctionRef<void(std::string_view)> word) const {
  std::vector<std::string_view> pieces;
  if (!text.empty()) pieces.push_back(text);
  std::deque<std::string> owned;  // Pieces that a space was added to; a deque does not move them.
  for (const Step& step : steps_) {
    std::vector<std::string_view> next;
    next.reserve(pieces.size());
    for (const std::string_view piece : pieces) {
      if (step.regex.has_value()) {
        if (absl::Status status = SplitPiece(piece, step.spec, *step.regex, &next); !status.ok())
          return status;
        continue;
      }
      const bool wanted =
          step.spec.kind == SplitStep::Kind::kPrefixSpace || (at_start && piece.data() == text.data());
      const std::string& prefix = step.spec.pattern;
      next.push_back(!wanted || piece.starts_with(prefix) ? piece
                                                          : owned.emplace_back(Concat(prefix, piece)));
    }
    pieces = std::move(next);
  }
  for (const std::string_view piece : pieces) word(piece);
  return absl::OkStatus();
}

}  // namespace outrider
