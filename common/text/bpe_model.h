// Byte-pair encoding of one word: repeatedly merges the pair of lowest rank (Sennrich et al., arXiv
// 1508.07909, over bytes as in GPT-2). Also the spelling of bytes in a vocabulary: as in SentencePiece, or in
// GPT-2's byte-level alphabet of one printable character for each byte, so that tokens can be written in a
// JSON file (bytes_to_unicode in https://github.com/openai/gpt-2/blob/master/src/encoder.py).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/spec/types.h"
#include "common/text/strings.h"
#include "common/text/tokenizer_spec.h"

namespace outrider {

// The character for `byte` in the byte-level alphabet, as UTF-8.
std::string ByteLevelCharacter(uint8_t byte);

// The token of a byte in a vocabulary without this alphabet: "<0x00>" to "<0xFF>", as in SentencePiece.
std::string ByteToken(uint8_t byte);
// The byte that such a token stands for; nullopt for any other token.
std::optional<uint8_t> ByteOfToken(std::string_view token);

// The bytes that `token` stands for; nullopt if one of its characters is not in the alphabet.
std::optional<std::string> ByteLevelToBytes(std::string_view token);

// Words and their token ids. Thread-safe: words are spread over shards with a mutex each, held for one lookup
// or insertion. A full shard is cleared, so the cache follows the text that is being encoded. Holds at most
// kShards * kWordsPerShard words of at most kMaxWordBytes bytes: a few MiB.
class WordCache {
 public:
  static constexpr size_t kShards = 16;
  static constexpr size_t kWordsPerShard = 2048;
  static constexpr size_t kMaxWordBytes = 64;

  // Appends the ids of `word` to `out` and returns true if it is cached.
  bool Find(std::string_view word, std::vector<TokenId>* out) {
    if (word.size() > kMaxWordBytes) return false;
    Shard& shard = ShardOf(word);
    std::lock_guard lock(shard.mutex);
    const auto entry = shard.words.find(word);
    if (entry == shard.words.end()) return false;
    out->insert(out->end(), entry->second.begin(), entry->second.end());
    return true;
  }

  void Insert(std::string_view word, const std::vector<TokenId>& tokens) {
    if (word.size() > kMaxWordBytes) return;
    Shard& shard = ShardOf(word);
    std::lock_guard lock(shard.mutex);
    if (shard.words.size() >= kWordsPerShard) shard.words.clear();
    shard.words.try_emplace(word, tokens);
  }

 private:
  struct Shard {
    std::mutex mutex;  // Not absl::Mutex: ThreadSanitizer cannot see into Debian's build of it.
    StringMap<std::vector<TokenId>> words;
  };

  Shard& ShardOf(std::string_view word) { return shards_[std::hash<std::string_view>()(word) % kShards]; }

  std::array<Shard, kShards> shards_;
};

// Const members are thread-safe.
class BpeModel {
 public:
  // INVALID_ARGUMENT for a merge whose parts or result are not in the vocabulary.
  static absl::StatusOr<std::unique_ptr<const BpeModel>> Create(const TokenizerSpec& spec);

  // Appends the ids of `word` to `out`. O(n log n). A byte or character without a token becomes byte tokens
  // or the unknown token, as the file says, or is dropped, as in HF.
  void Encode(std::string_view word, std::vector<TokenId>* out) const;

 private:
  struct Merge {
    int32_t rank;
    TokenId result;
  };
  class Word;

  BpeModel() = default;

  static constexpr TokenId kNoToken = -1;
  // Appends the tokens of `word` before any merge.
  void Spell(std::string_view word, std::vector<TokenId>* out) const;
  void SpellCharacter(std::string_view character, std::vector<TokenId>* out) const;

  std::array<TokenId, 256> byte_tokens_;  // kNoToken for a byte without one
  std::optional<StringMap<TokenId>>
      character_tokens_;  // unless tokens are spelled in the byte-level alphabet
  TokenId unknown_ = kNoToken;
  bool fuse_unknown_ = false;
  absl::flat_hash_map<std::pair<TokenId, TokenId>, Merge> merges_;
  StringMap<TokenId> whole_words_;  // By the token's bytes; empty unless ignore_merges is set.
  mutable WordCache cache_;
};

}  // namespace outrider
