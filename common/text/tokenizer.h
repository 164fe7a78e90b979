// A BPE tokenizer, over bytes or as in SentencePiece, from a Hugging Face `tokenizer.json` or a GGUF file.
// Encodes and decodes exactly as the `tokenizers` library does.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/spec/types.h"
#include "common/text/added_tokens.h"
#include "common/text/strings.h"
#include "common/text/tokenizer_spec.h"
#include "common/text/utf8.h"

namespace outrider {

class BpeModel;
class PreTokenizer;

// Supports: model BPE (both forms of merges, ignore_merges, byte_fallback, fuse_unk); normalizers NFC,
// Prepend, Replace (String) and Sequence; pre-tokenizers ByteLevel, Split (Regex or String; Isolated, Removed
// or MergedWithPrevious), Digits, Metaspace without split, and Sequence, which ends in ByteLevel if the
// decoder is ByteLevel; added tokens with lstrip, rstrip, single_word and normalized; post-processors
// TemplateProcessing, ByteLevel and Sequence; decoders ByteLevel, and Replace, ByteFallback, Fuse with or
// without Strip. Anything else is refused by name. The file's `truncation` and `padding` are ignored: the
// coordinator refuses requests that are too long and never truncates them.
//
// Const members are thread-safe. The only mutable state is a bounded cache of encoded words, in shards with a
// mutex each.
class Tokenizer {
 public:
  // Loads a tokenizer.json, with the added tokens of the files beside it (AddTokensFromFolder), or a GGUF
  // file if the path ends in .gguf (ReadGgufTokenizer). NOT_FOUND if the file cannot be read;
  // INVALID_ARGUMENT if it is damaged or needs something unsupported. Messages are one line and begin with
  // the path.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& path);

  // Parses the content of a tokenizer.json; `name` replaces the path in messages. Adds the tokens of the
  // files in `folder`, unless that is empty.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Parse(std::string_view json, std::string_view name,
                                                          const std::string& folder = "");

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // The ids of `text`. Special tokens in the text are recognised, as in HF, except in `plain`, ordered byte
  // ranges of a well-formed text. `add_special_tokens` adds the post-processor's tokens (for Llama 3 the
  // BOS). Ill-formed UTF-8 is first replaced as LossyUtf8 does, as it is in the text that HF gets. O(n log n)
  // in the bytes of the longest word. RESOURCE_EXHAUSTED if a pattern of the file takes too long to split
  // this text: only a damaged or hostile file has such a pattern.
  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text, bool add_special_tokens,
                                              std::span<const AddedTokens::Range> plain = {}) const;

  // The text of `tokens`, always valid UTF-8 (LossyUtf8 of their concatenated bytes; HF replaces each byte of
  // an ill-formed run of byte tokens). Ids outside the vocabulary add nothing; with `skip_special_tokens`,
  // neither do special tokens. Without a leading space if the file's decoder strips it.
  std::string Decode(std::span<const TokenId> tokens, bool skip_special_tokens) const;

  // TokenBytes as valid UTF-8 (LossyUtf8), to be shown. Unlike Decode it keeps a leading space.
  std::string TokenText(TokenId token) const { return LossyUtf8(TokenBytes(token)); }

  // The bytes of `token`, which may be a part of a character. Empty for an id without a token. The reference
  // is valid as long as the tokenizer.
  const std::string& TokenBytes(TokenId token) const {
    return token >= 0 && token < vocab_size() ? bytes_[token] : no_bytes_;
  }

  // The highest id plus 1. Some ids in [0, vocab_size()) may have no token.
  int vocab_size() const { return static_cast<int>(bytes_.size()); }

  // The most bytes of text that one token stands for. nullopt if the tokenizer leaves out some text, so that
  // there is no limit.
  std::optional<size_t> max_token_bytes() const { return max_token_bytes_; }

  // The id of a token as the file spells it (byte-level alphabet, so " the" is "Ġthe"), added tokens
  // included.
  std::optional<TokenId> TokenToId(std::string_view token) const {
    const auto id = ids_.find(token);
    if (id == ids_.end()) return std::nullopt;
    return id->second;
  }

  // Whether `token` is an added token marked special. False for ids outside the vocabulary.
  bool IsSpecial(TokenId token) const { return token >= 0 && token < vocab_size() && special_[token]; }

  // A hash of what gives ids their meaning: tokens and ids, merges, added tokens and how text is split, all
  // from the file itself, not from those beside it. Equal for files that differ only in formatting, order of
  // keys, form of merges, or explicit defaults, and for the GGUF file of the same model. It therefore ignores
  // which tokens are special, whether they are found in normalized text, and which stretches of a text get
  // SentencePiece's leading space. Not cryptographic.
  uint64_t Fingerprint() const { return fingerprint_; }

 private:
  Tokenizer();
  // `name` begins messages.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Make(TokenizerSpec spec, std::string_view name,
                                                         uint64_t fingerprint);
  void AddToken(const std::string& token, TokenId id, bool special);

  std::unique_ptr<const AddedTokens> added_;
  std::unique_ptr<const PreTokenizer> pre_tokenizer_;
  std::unique_ptr<const BpeModel> model_;
  std::vector<TokenId> prefix_, suffix_;  // around the text, with add_special_tokens
  Spelling spelling_;
  std::vector<std::string> bytes_;  // [vocab_size]
  std::vector<bool> special_;       // [vocab_size]
  std::string no_bytes_;
  StringMap<TokenId> ids_;
  uint64_t fingerprint_ = 0;
  std::optional<size_t> max_token_bytes_;
};

// A hash of what draft and target must agree on because it gives token ids their meaning: the tokenizer
// (Tokenizer::Fingerprint), the number of logits in a row, and the ids that end a text.
uint64_t ModelFingerprint(uint64_t tokenizer, int vocab_size, std::span<const TokenId> eos_ids);

// Decodes a stream of tokens into text without splitting a character.
//
// The concatenated outputs of Append and Flush equal Tokenizer::Decode of all tokens, except that they keep
// the leading space that Decode may strip: a stream continues a text. Every output is valid UTF-8. One per
// stream; not thread-safe. The tokenizer must outlive it.
class StreamingDetokenizer {
 public:
  StreamingDetokenizer(const Tokenizer* tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

  // The text that `token` completes. Bytes of an incomplete character at its end are held back until a later
  // token completes the character or makes it ill-formed (then U+FFFD).
  std::string Append(TokenId token) {
    std::string text;
    if (skip_special_tokens_ && tokenizer_->IsSpecial(token)) return text;
    stream_.Append(tokenizer_->TokenBytes(token), &text);
    return text;
  }

  // Ends the text: returns U+FFFD if it ends inside a character, else nothing. Resets the stream.
  std::string Flush() {
    std::string text;
    stream_.Finish(&text);
    return text;
  }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  LossyUtf8Stream stream_;
};

}  // namespace outrider
