// A bounded, thread-safe cache of words and their token ids.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "common/spec/types.h"
#include "common/text/strings.h"

namespace outrider {

// Thread-safe: words are spread over shards with a mutex each, held for one lookup or insertion. A full shard
// is cleared, so the cache follows the text that is being encoded. Holds at most kShards * kWordsPerShard
// words of at most kMaxWordBytes bytes: a few MiB.
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

}  // namespace outrider
