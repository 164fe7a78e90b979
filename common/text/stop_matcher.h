// Finds stop strings in text that arrives in pieces, and holds back what may become one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"

namespace outrider {

// Which stop string ended the text, and where.
struct StopMatch {
  int stop_index;    // In the list given to Create.
  int64_t piece;     // The call of Append, counted from 0, that completed it.
  size_t text_size;  // Bytes of text before the stop string: the length of everything emitted.
};

// The match that completes first wins, the longest if several end at the same byte. So the result depends
// only on the text, not on how it was cut into pieces, and equals what vLLM does when text arrives one
// character at a time. The stop string itself is never emitted, nor anything after it.
//
// Feed one piece per committed token (its text, also if empty): then `piece` is the index of the token that
// completed the match, and later tokens can be discarded. Held-back text goes with a later piece.
//
// Aho-Corasick over bytes: time is linear in the text, whatever the stop strings are; memory is linear in
// the stop strings' total length. At most as many bytes as the longest stop string has, less one, are held.
// One per stream; not thread-safe.
class StopMatcher {
 public:
  static constexpr int kMaxStopStrings = 64;
  static constexpr int kMaxStopBytes = 4096;  // Of one stop string.

  // INVALID_ARGUMENT for too many strings, or one that is empty, too long, or not UTF-8. No strings are
  // allowed: such a matcher passes everything through.
  static absl::StatusOr<StopMatcher> Create(std::span<const std::string> stops);

  // Takes the next piece and returns what can be emitted: all text so far less its longest suffix that is a
  // proper prefix of some stop string. Whole characters, if the pieces are. After a match, nothing.
  std::string Append(std::string_view piece);

  // Ends the text: returns what was held back. Nothing after a match.
  std::string Flush();

  const std::optional<StopMatch>& match() const { return match_; }

 private:
  // A node stands for a prefix of some stop string; node 0 for the empty one.
  struct Node {
    int32_t depth = 0;      // Length of the prefix.
    int32_t fail = 0;       // The longest proper suffix that is also a prefix of some stop string.
    int32_t stop = -1;      // The longest stop string that is a suffix of this prefix; -1 if none.
    int32_t stop_size = 0;  // Its length.
  };

  StopMatcher() = default;
  int32_t Child(int32_t node, char byte) const;
  int32_t Next(int32_t node, char byte) const;

  std::vector<Node> nodes_;
  absl::flat_hash_map<std::pair<int32_t, char>, int32_t> children_;

  int32_t state_ = 0;
  std::string held_;
  int64_t pieces_ = 0;
  size_t emitted_ = 0;
  std::optional<StopMatch> match_;
};

}  // namespace outrider
