#include "common/text/tokenizer.h"

#include <algorithm>
#include <cerrno>
#include <concepts>
#include <cstring>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_replace.h"
#include "common/gguf/gguf_file.h"
#include "common/gguf/model_path.h"
#include "common/kv/prefix_hash.h"
#include "common/spec/status.h"
#include "common/text/bpe_model.h"
#include "common/text/pre_tokenizer.h"
#include "common/text/tokenizer_gguf.h"

namespace outrider {
namespace {

// The value, or its error with the name before it.
template <class T>
absl::StatusOr<T> WithName(std::string_view name, absl::StatusOr<T> value) {
  if (value.ok()) return value;
  return absl::Status(value.status().code(), Concat(name, ": ", value.status().message()));
}

// The bytes that the decoder emits for a token. With the byte-level alphabet, a token with a character that
// is not in the alphabet is emitted as it is written.
std::string DecodedBytes(const std::string& token, const Spelling& spelling) {
  if (spelling.byte_level) return ByteLevelToBytes(token).value_or(token);
  if (const std::optional<uint8_t> byte = ByteOfToken(token)) return std::string(1, static_cast<char>(*byte));
  return absl::StrReplaceAll(token, {{spelling.space, " "}});
}

// 64-bit FNV-1a. Texts and lists are preceded by their length, so that two different specs never hash the
// same bytes.
class Hash {
 public:
  template <class... Parts>
  void Add(const Parts&... parts) {
    (AddOne(parts), ...);
  }
  uint64_t value() const { return value_; }

 private:
  void AddOne(std::integral auto number) {
    const auto bits = static_cast<uint64_t>(number);
    for (int shift = 0; shift < 64; shift += 8) AddByte(static_cast<uint8_t>(bits >> shift));
  }
  void AddOne(std::string_view text) {
    AddOne(text.size());
    for (const char byte : text) AddByte(static_cast<uint8_t>(byte));
  }
  void AddByte(uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001B3; }

  uint64_t value_ = 0xCBF29CE484222325;
};

uint64_t Flags(std::initializer_list<bool> flags) {
  uint64_t bits = 0;
  for (const bool flag : flags) bits = bits * 2 + (flag ? 1 : 0);
  return bits;
}

// Whether a step puts SentencePiece's symbol for a space before a text, in one of its forms.
bool AddsSpace(const TokenizerSpec& spec) {
  const std::string& space = spec.spelling.space;
  const auto prepends = [&](const NormalizeStep& step) {
    return step.kind == NormalizeStep::Kind::kPrepend && step.content == space;
  };
  const auto begins = [&](const SplitStep& step) {
    return (step.kind == SplitStep::Kind::kPrefixSpace || step.kind == SplitStep::Kind::kStartSpace) &&
           step.pattern == space;
  };
  return std::ranges::any_of(spec.normalizer, prepends) || std::ranges::any_of(spec.steps, begins);
}

// See Tokenizer::Fingerprint.
uint64_t FingerprintOf(const TokenizerSpec& spec) {
  // A token may be in the vocabulary, added, or both. If it is both, the added token counts.
  std::vector<std::tuple<TokenId, std::string_view, uint64_t>> tokens;
  tokens.reserve(spec.vocab.size() + spec.added.size());
  for (const auto& [token, id] : spec.vocab) tokens.emplace_back(id, token, 0);
  for (const AddedToken& token : spec.added) {
    tokens.emplace_back(token.id, token.content,
                        Flags({true, token.single_word, token.lstrip, token.rstrip}));
  }
  std::ranges::sort(tokens, std::greater());
  const auto same =
      std::ranges::unique(tokens, {}, [](const auto& token) { return std::get<TokenId>(token); });
  tokens.erase(same.begin(), same.end());
  Hash hash;
  hash.Add(tokens.size());
  for (const auto& [id, token, flags] : tokens) hash.Add(id, token, flags);
  std::vector<std::pair<std::string, std::string>> merges = spec.merges;
  // SentencePiece orders merges by score, and each converter orders those of equal scores in its own way.
  if (!spec.spelling.byte_level) std::ranges::sort(merges);
  hash.Add(merges.size());
  for (const auto& [left, right] : merges) hash.Add(left, right);
  hash.Add(Flags({spec.ignore_merges, spec.spelling.byte_level, spec.byte_fallback, AddsSpace(spec)}));
  if (!spec.byte_fallback) hash.Add(Flags({spec.fuse_unknown}), spec.unknown_token.value_or(""));
  // SentencePiece's steps come in several forms, which all replace spaces. Only AddsSpace counts for them.
  const std::string& space = spec.spelling.space;
  for (const NormalizeStep& step : spec.normalizer) {
    if (!space.empty() && step.content == space) continue;
    hash.Add("normalize", static_cast<int>(step.kind), step.pattern, step.content);
  }
  for (const SplitStep& step : spec.steps) {
    if (!space.empty() && (step.pattern == space || step.pattern == " ")) continue;
    hash.Add("split", static_cast<int>(step.kind), step.pattern,
             step.join_previous ? 4 : Flags({step.remove_matches, step.remove_between}));
  }
  return hash.value();
}

// Whether a token may stand for any number of bytes of text. `has_bytes` tells whether each byte has a token.
bool HasUnboundedTokens(const TokenizerSpec& spec, bool has_bytes) {
  const auto shortens = [&](const NormalizeStep& step) {
    const bool marks_spaces = step.pattern == " " && step.content == spec.spelling.space;
    return step.kind == NormalizeStep::Kind::kReplace && !marks_spaces;
  };
  return std::ranges::any_of(spec.added, [](const AddedToken& t) { return t.lstrip || t.rstrip; }) ||
         std::ranges::any_of(
             spec.steps, [](const SplitStep& step) { return step.remove_matches || step.remove_between; }) ||
         std::ranges::any_of(spec.normalizer, shortens) ||
         (!spec.spelling.byte_level && !(spec.byte_fallback && has_bytes));
}

// The most bytes of text that become one token. The token as spelled counts too, since a text may contain the
// symbol for a space. Composing leaves at least a third of the bytes (three of nine in a Hangul syllable).
size_t LongestOf(const TokenizerSpec& spec, const std::vector<std::string>& decoded) {
  size_t longest = 0;
  for (const std::string& bytes : decoded) longest = std::max(longest, bytes.size());
  if (!spec.spelling.byte_level) {
    for (const auto& [token, id] : spec.vocab) longest = std::max(longest, token.size());
  }
  const bool composes = std::ranges::any_of(
      spec.normalizer, [](const NormalizeStep& step) { return step.kind == NormalizeStep::Kind::kNfc; });
  return composes ? 3 * longest : longest;
}

}  // namespace

Tokenizer::Tokenizer() = default;
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path) {
  if (IsGguf(path)) {
    const GgufFile file = OUTRIDER_TRY(GgufFile::Open(path));
    TokenizerSpec spec = OUTRIDER_TRY(ReadGgufTokenizer(file));
    const uint64_t fingerprint = FingerprintOf(spec);
    return Make(std::move(spec), path, fingerprint);
  }
  const std::optional<std::string> json = ReadFile(path);
  if (!json) return absl::NotFoundError(Concat(path, ": cannot be read: ", std::strerror(errno)));
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return Parse(*json, path, folder.empty() ? "." : folder);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Parse(std::string_view json, std::string_view name,
                                                            const std::string& folder) {
  TokenizerSpec spec = OUTRIDER_TRY(WithName(name, ParseTokenizerJson(json)));
  const uint64_t fingerprint = FingerprintOf(spec);
  if (!folder.empty()) OUTRIDER_TRY(AddTokensFromFolder(folder, &spec));
  return Make(std::move(spec), name, fingerprint);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Make(TokenizerSpec spec, std::string_view name,
                                                           uint64_t fingerprint) {
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer());
  tokenizer->fingerprint_ = fingerprint;
  tokenizer->model_ = OUTRIDER_TRY(WithName(name, BpeModel::Create(spec)));
  tokenizer->pre_tokenizer_ = OUTRIDER_TRY(WithName(name, PreTokenizer::Create(spec.steps)));
  const Normalizer normalizer(spec.normalizer);
  tokenizer->added_ = OUTRIDER_TRY(WithName(name, AddedTokens::Create(spec.added, normalizer)));
  tokenizer->spelling_ = spec.spelling;
  for (const auto& [token, id] : spec.vocab) tokenizer->AddToken(token, id, /*special=*/false);
  for (const AddedToken& token : spec.added) {
    tokenizer->AddToken(token.content, token.id, token.special);
    // A normalized token is decoded as its normalized text, which is the text that matches it.
    if (token.normalized && !normalizer.does_nothing()) {
      tokenizer->bytes_[token.id] = DecodedBytes(normalizer.Normalize(token.content), spec.spelling);
    }
  }
  for (const std::vector<TokenId>* around : {&spec.prefix, &spec.suffix}) {
    for (const TokenId id : *around) {
      if (id >= tokenizer->vocab_size()) {
        return absl::InvalidArgumentError(
            Concat(name, ": post_processor uses token ", id, ", which is not in the vocabulary"));
      }
    }
  }
  bool has_bytes = true;
  for (int byte = 0; byte < 256; ++byte) {
    has_bytes = has_bytes && tokenizer->TokenToId(ByteToken(static_cast<uint8_t>(byte))).has_value();
  }
  if (!HasUnboundedTokens(spec, has_bytes)) tokenizer->max_token_bytes_ = LongestOf(spec, tokenizer->bytes_);
  tokenizer->prefix_ = std::move(spec.prefix);
  tokenizer->suffix_ = std::move(spec.suffix);
  return tokenizer;
}

void Tokenizer::AddToken(const std::string& token, TokenId id, bool special) {
  if (id >= vocab_size()) {
    bytes_.resize(id + 1);
    special_.resize(id + 1);
  }
  bytes_[id] = DecodedBytes(token, spelling_);
  special_[id] = special;
  ids_[token] = id;
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::Encode(std::string_view text, bool add_special_tokens,
                                                       std::span<const AddedTokens::Range> plain) const {
  std::string replaced;
  if (!IsValidUtf8(text)) {
    replaced = LossyUtf8(text);
    text = replaced;
  }
  std::vector<TokenId> tokens;
  tokens.reserve(text.size() / 3 + 8);
  if (add_special_tokens) tokens = prefix_;
  absl::Status status;
  added_->Split(
      text, plain,
      [&](const AddedTokens::Stretch& between) {
        if (!status.ok()) return;
        status = pre_tokenizer_->Split(between.text, between.at_start,
                                       [&](std::string_view word) { model_->Encode(word, &tokens); });
      },
      [&](TokenId token) { tokens.push_back(token); });
  if (!status.ok()) return status;
  if (add_special_tokens) tokens.insert(tokens.end(), suffix_.begin(), suffix_.end());
  return tokens;
}

std::string Tokenizer::Decode(std::span<const TokenId> tokens, bool skip_special_tokens) const {
  std::string bytes;
  for (const TokenId token : tokens) {
    if (!skip_special_tokens || !IsSpecial(token)) bytes += TokenBytes(token);
  }
  if (spelling_.drops_leading_space && bytes.starts_with(' ')) bytes.erase(0, 1);
  return LossyUtf8(bytes);
}

uint64_t ModelFingerprint(uint64_t tokenizer, int vocab_size, std::span<const TokenId> eos_ids) {
  uint64_t hash = ExtendPrefixHash(tokenizer, vocab_size);
  for (TokenId id : eos_ids) hash = ExtendPrefixHash(hash, id);
  return hash;
}

}  // namespace outrider
