#include "common/text/added_tokens.h"

#include <algorithm>

#include "common/spec/status.h"
#include "common/text/utf8.h"

namespace outrider {
namespace {

// The beginning of the character that ends at `end`; `end` > 0.
size_t CharacterBefore(std::string_view text, size_t end) {
  do {
    --end;
  } while (end > 0 && IsContinuation(text[end]));
  return end;
}

// The characters with the Unicode property White_Space, which is Rust's \s.
bool IsWhiteSpace(std::string_view character) {
  if (character.size() == 1) return character[0] == ' ' || (character[0] >= '\t' && character[0] <= '\r');
  if (character.size() == 2) return character == "\u0085" || character == "\u00A0";
  return character == "\u1680" || (character >= "\u2000" && character <= "\u200A") || character == "\u2028" ||
         character == "\u2029" || character == "\u202F" || character == "\u205F" || character == "\u3000";
}

size_t StripLeft(std::string_view text, size_t begin, size_t limit) {
  while (begin > limit) {
    const size_t previous = CharacterBefore(text, begin);
    if (!IsWhiteSpace(text.substr(previous, begin - previous))) break;
    begin = previous;
  }
  return begin;
}

size_t StripRight(std::string_view text, size_t end) {
  while (end < text.size()) {
    const size_t next = CharacterAfter(text, end);
    if (!IsWhiteSpace(text.substr(end, next - end))) break;
    end = next;
  }
  return end;
}

bool Matches(const Regex& regex, std::string_view text) {
  bool matches = false;
  // The pattern is not from a file and the text is one character, so no limit is reached.
  regex.ForEachMatch(text, [&](size_t, size_t) { matches = true; }).IgnoreError();
  return matches;
}

}  // namespace

void AddedTokens::Trie::Add(std::string_view content, int32_t value) {
  int32_t node = 0;
  first_bytes_.set(static_cast<uint8_t>(content[0]));
  for (const char byte : content) {
    const auto [child, is_new] =
        children_.try_emplace(std::pair(node, byte), static_cast<int32_t>(values_.size()));
    if (is_new) values_.push_back(-1);
    node = child->second;
  }
  values_[node] = value;
}

int32_t AddedTokens::Trie::LongestPrefix(std::string_view text) const {
  if (!first_bytes_[static_cast<uint8_t>(text[0])]) return -1;
  int32_t node = 0;
  int32_t longest = -1;
  for (const char byte : text) {
    const auto child = children_.find(std::pair(node, byte));
    if (child == children_.end()) break;
    node = child->second;
    if (values_[node] >= 0) longest = values_[node];
  }
  return longest;
}

absl::StatusOr<std::unique_ptr<const AddedTokens>> AddedTokens::Create(std::vector<AddedToken> tokens,
                                                                       Normalizer normalizer) {
  Regex word_character = OUTRIDER_TRY(Regex::Compile(RustWordCharacter(), Regex::Syntax::kPattern));
  return std::unique_ptr<const AddedTokens>(
      new AddedTokens(std::move(tokens), std::move(normalizer), std::move(word_character)));
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, Normalizer normalizer, Regex word_character)
    : normalizer_(std::move(normalizer)), word_character_(std::move(word_character)) {
  for (AddedToken& token : tokens) {
    std::string text = token.normalized ? normalizer_.Normalize(token.content) : token.content;
    if (text.empty()) continue;  // it matches no text
    (token.normalized ? normalized_ : plain_).Add(text, static_cast<int32_t>(entries_.size()));
    entries_.push_back({std::move(token), std::move(text)});
  }
}

void AddedTokens::Split(std::string_view text, std::span<const Range> plain,
                        absl::FunctionRef<void(const Stretch&)> between,
                        absl::FunctionRef<void(TokenId)> found) const {
  std::string owned;
  const auto is_plain = [&](Range range) {
    const auto* const next = std::partition_point(plain.data(), plain.data() + plain.size(),
                                                  [&](const Range& r) { return r.end <= range.begin; });
    return next != plain.data() + plain.size() && next->begin < range.end;
  };
  SplitBy(
      plain_, text, is_plain,
      [&](std::string_view part) {
        const auto offset = static_cast<size_t>(part.data() - text.data());
        std::string_view normalized = part;
        if (!normalizer_.does_nothing()) normalized = owned = normalizer_.Normalize(part);
        const bool same = normalized.data() == part.data();
        SplitBy(
            normalized_, normalized,
            [&](Range range) {
              // Normalized text no longer maps to ranges: all of it is plain if any is.
              return same ? is_plain({offset + range.begin, offset + range.end})
                          : is_plain({offset, offset + part.size()});
            },
            [&](std::string_view stretch) {
              between({stretch, part.data() == text.data() && stretch.data() == normalized.data()});
            },
            found);
      },
      found);
}

void AddedTokens::SplitBy(const Trie& trie, std::string_view text, absl::FunctionRef<bool(Range)> is_plain,
                          absl::FunctionRef<void(std::string_view)> between,
                          absl::FunctionRef<void(TokenId)> found) const {
  size_t done = 0;
  for (size_t i = 0; i < text.size();) {
    const int32_t index = trie.LongestPrefix(text.substr(i));
    if (index < 0) {
      ++i;
      continue;
    }
    const AddedToken& token = entries_[index].token;
    size_t begin = i;
    size_t end = i + entries_[index].text.size();
    if (token.special && is_plain({begin, end})) {
      ++i;
      continue;
    }
    i = end;  // A rejected match is skipped all the same, as in HF.
    if (token.single_word && !IsSingleWord(text, begin, end)) continue;
    if (token.lstrip) begin = std::max(StripLeft(text, begin, done), done);
    if (token.rstrip) end = StripRight(text, end);
    if (done < begin) between(text.substr(done, begin - done));
    found(token.id);
    done = end;
  }
  if (done < text.size()) between(text.substr(done));
}

bool AddedTokens::IsSingleWord(std::string_view text, size_t begin, size_t end) const {
  if (begin > 0) {
    const size_t previous = CharacterBefore(text, begin);
    if (Matches(word_character_, text.substr(previous, begin - previous))) return false;
  }
  return end == text.size() || !Matches(word_character_, text.substr(end, CharacterAfter(text, end) - end));
}

}  // namespace outrider
