#include "common/text/tokenizer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_replace.h"
#include "common/text/added_tokens.h"
#include "common/text/bpe_model.h"
#include "common/text/byte_level.h"
#include "common/text/model_fingerprint.h"
#include "common/text/pre_tokenizer.h"
#include "common/text/read_file.h"
#include "common/text/strings.h"
#include "common/text/tokenizer_spec.h"
#include "common/text/utf8.h"

namespace outrider {
namespace {

absl::Status WithName(std::string_view name, const absl::Status& status) {
  return {status.code(), Concat(name, ": ", status.message())};
}

// The bytes that the decoder emits for a token: in the byte-level alphabet, the token as written if one of
// its characters is not in it.
std::string DecodedBytes(const std::string& token, const Spelling& spelling) {
  if (spelling.byte_level) return ByteLevelToBytes(token).value_or(token);
  if (const std::optional<uint8_t> byte = ByteOfToken(token)) return std::string(1, static_cast<char>(*byte));
  return absl::StrReplaceAll(token, {{spelling.space, " "}});
}

// Whether a token may stand for any number of bytes. `has_bytes` says whether each byte has a token.
bool LeavesOut(const TokenizerSpec& spec, bool has_bytes) {
  const auto shortens = [&](const NormalizeStep& step) {
    const bool marks_spaces = step.pattern == " " && step.content == spec.spelling.space;
    return step.kind == NormalizeStep::Kind::kReplace && !marks_spaces;
  };
  return std::any_of(spec.added.begin(), spec.added.end(),
                     [](const AddedToken& t) { return t.lstrip || t.rstrip; }) ||
         std::any_of(spec.steps.begin(), spec.steps.end(),
                     [](const SplitStep& step) { return step.remove_matches || step.remove_between; }) ||
         std::any_of(spec.normalizer.begin(), spec.normalizer.end(), shortens) ||
         (!spec.spelling.byte_level && !(spec.byte_fallback && has_bytes));
}

// The most bytes of text that become one token. The token as spelled counts too, since a text may spell
// spaces so. Composing replaces at most three bytes by one (nine of a Hangul syllable's parts become three).
size_t LongestOf(const TokenizerSpec& spec, const std::vector<std::string>& decoded) {
  size_t longest = 0;
  for (const std::string& bytes : decoded) longest = std::max(longest, bytes.size());
  if (!spec.spelling.byte_level) {
    for (const auto& [token, id] : spec.vocab) longest = std::max(longest, token.size());
  }
  const bool composes =
      std::any_of(spec.normalizer.begin(), spec.normalizer.end(),
                  [](const NormalizeStep& step) { return step.kind == NormalizeStep::Kind::kNfc; });
  return composes ? 3 * longest : longest;
}

}  // namespace

Tokenizer::Tokenizer() = default;
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path) {
  const std::optional<std::string> json = ReadFile(path);
  if (!json) return absl::NotFoundError(Concat(path, ": cannot be read: ", std::strerror(errno)));
  absl::StatusOr<TokenizerSpec> spec = ParseTokenizerJson(*json);
  if (!spec.ok()) return WithName(path, spec.status());
  const uint64_t fingerprint = FingerprintOf(*spec);
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (absl::Status status = AddTokensBeside(folder.empty() ? "." : folder, &*spec); !status.ok())
    return status;
  return Make(*std::move(spec), fingerprint, path);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Parse(std::string_view json, std::string_view name) {
  absl::StatusOr<TokenizerSpec> spec = ParseTokenizerJson(json);
  if (!spec.ok()) return WithName(name, spec.status());
  const uint64_t fingerprint = FingerprintOf(*spec);
  return Make(*std::move(spec), fingerprint, name);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Make(TokenizerSpec spec, uint64_t fingerprint,
                                                           std::string_view name) {
  auto model = BpeModel::Create(spec);
  if (!model.ok()) return WithName(name, model.status());
  auto pre_tokenizer = PreTokenizer::Create(spec.steps);
  if (!pre_tokenizer.ok()) return WithName(name, pre_tokenizer.status());
  const Normalizer normalizer(spec.normalizer);
  auto added = AddedTokens::Create(spec.added, normalizer);
  if (!added.ok()) return WithName(name, added.status());

  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer());
  tokenizer->fingerprint_ = fingerprint;
  tokenizer->model_ = *std::move(model);
  tokenizer->pre_tokenizer_ = *std::move(pre_tokenizer);
  tokenizer->added_ = *std::move(added);
  tokenizer->spelling_ = spec.spelling;
  for (const auto& [token, id] : spec.vocab) tokenizer->AddToken(token, id, /*special=*/false);
  for (const AddedToken& token : spec.added) {
    tokenizer->AddToken(token.content, token.id, token.special);
    // Such a token is decoded as the text that it is searched for.
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
  if (!LeavesOut(spec, has_bytes)) tokenizer->max_token_bytes_ = LongestOf(spec, tokenizer->bytes_);
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

std::string Tokenizer::TokenText(TokenId token) const { return LossyUtf8(TokenBytes(token)); }

const std::string& Tokenizer::TokenBytes(TokenId token) const {
  return token >= 0 && token < vocab_size() ? bytes_[token] : no_bytes_;
}

std::optional<TokenId> Tokenizer::TokenToId(std::string_view token) const {
  const auto id = ids_.find(token);
  if (id == ids_.end()) return std::nullopt;
  return id->second;
}

bool Tokenizer::IsSpecial(TokenId token) const {
  return token >= 0 && token < vocab_size() && special_[token];
}

}  // namespace outrider
