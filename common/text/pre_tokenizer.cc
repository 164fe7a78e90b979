#include "common/text/pre_tokenizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>

#include "absl/strings/str_replace.h"
#include "common/spec/status.h"
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

// Appends the canonical decomposition of a character.
void Decompose(int32_t character, std::vector<int32_t>* out) {
  constexpr utf8proc_ssize_t kLongest = 8;  // Unicode's longest has 4
  int32_t parts[kLongest];
  int boundary = 0;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
  const utf8proc_ssize_t count = utf8proc_decompose_char(character, parts, kLongest, options, &boundary);
  if (count < 1 || count > kLongest) {
    out->push_back(character);
  } else {
    out->insert(out->end(), parts, parts + count);
  }
}

// Sorts each run of combining characters by class. utf8proc_map sorts by swapping neighbours, in time
// quadratic in the length of a run, and a hostile text is one run.
void Reorder(std::vector<int32_t>* characters) {
  const auto class_of = [](int32_t character) { return utf8proc_get_property(character)->combining_class; };
  for (auto begin = characters->begin(); begin != characters->end();) {
    const auto end = std::find_if(begin, characters->end(), [&](int32_t c) { return class_of(c) == 0; });
    std::stable_sort(begin, end, [&](int32_t a, int32_t b) { return class_of(a) < class_of(b); });
    begin = end == characters->end() ? end : end + 1;
  }
}

// Unicode's normalization form C of valid UTF-8. O(n log n).
std::string Composed(const std::string& text) {
  if (std::ranges::all_of(text, [](char c) { return static_cast<signed char>(c) >= 0; })) return text;
  std::vector<int32_t> characters;
  characters.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    int32_t character = 0;
    const utf8proc_ssize_t size =
        utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + i,
                         static_cast<utf8proc_ssize_t>(text.size() - i), &character);
    if (size < 1) return text;
    Decompose(character, &characters);
    i += static_cast<size_t>(size);
  }
  Reorder(&characters);
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const utf8proc_ssize_t count =
      utf8proc_normalize_utf32(characters.data(), static_cast<utf8proc_ssize_t>(characters.size()), options);
  std::string composed;
  composed.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    utf8proc_uint8_t bytes[4];
    const utf8proc_ssize_t size = utf8proc_encode_char(characters[static_cast<size_t>(i)], bytes);
    composed.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
  }
  return composed;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const PreTokenizer>> PreTokenizer::Create(
    const std::vector<SplitStep>& specs) {
  std::vector<Step> steps;
  for (const SplitStep& spec : specs) {
    Step step{.spec = spec, .regex = std::nullopt};
    if (spec.kind == SplitStep::Kind::kRegex || spec.kind == SplitStep::Kind::kString) {
      const bool literal = spec.kind == SplitStep::Kind::kString;
      std::string pattern = OUTRIDER_TRY(literal ? spec.pattern : PcreFromOniguruma(spec.pattern));
      step.regex =
          OUTRIDER_TRY(Regex::Compile(pattern, literal ? Regex::Syntax::kLiteral : Regex::Syntax::kPattern));
    }
    steps.push_back(std::move(step));
  }
  return std::unique_ptr<const PreTokenizer>(new PreTokenizer(std::move(steps)));
}

absl::Status PreTokenizer::Split(std::string_view text, bool at_start,
                                 absl::FunctionRef<void(std::string_view)> word) const {
  std::vector<std::string_view> pieces;
  if (!text.empty()) pieces.push_back(text);
  std::deque<std::string> owned;  // Pieces with an added space. A deque does not move its elements.
  for (const Step& step : steps_) {
    std::vector<std::string_view> next;
    next.reserve(pieces.size());
    for (const std::string_view piece : pieces) {
      if (step.regex.has_value()) {
        OUTRIDER_TRY(SplitPiece(piece, step.spec, *step.regex, &next));
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

std::string Normalizer::Normalize(std::string_view text) const {
  std::string result(text);
  for (const NormalizeStep& step : steps_) {
    if (result.empty()) break;
    switch (step.kind) {
      case NormalizeStep::Kind::kNfc:
        result = Composed(result);
        break;
      case NormalizeStep::Kind::kPrepend:
        result = Concat(step.content, result);
        break;
      case NormalizeStep::Kind::kReplace:
        result = absl::StrReplaceAll(result, {{step.pattern, step.content}});
        break;
    }
  }
  return result;
}

}  // namespace outrider
