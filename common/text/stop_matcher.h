// Finds stop strings in streamed text and holds back text that may become one.
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
  int stop_index;    // index in the list given to Create
  int64_t piece;     // the call of Append, from 0 on, that completed it
  size_t text_size;  // bytes of text before the stop string, which is all that is emitted
};

// The match that completes first wins; if several end at the same byte, the longest of them. The result
// therefore depends only on the text and not on how it was cut into pieces. It equals vLLM's when text
// arrives one character at a time. Neither the stop string nor anything after it is emitted.
//
// Append one piece per committed token: its text, even if empty. Then `piece` is the index of the token that
// completed the match, and later tokens can be discarded. Text that is held back is emitted with a later
// piece.
//
// The algorithm is Aho-Corasick over bytes. Time is linear in the text, whatever the stop strings are. Memory
// is linear in the total length of the stop strings. At most one byte less than the longest stop string is
// held back. One matcher per stream; not thread-safe.
class StopMatcher {
 public:
  static constexpr int kMaxStopStrings = 64;
  static constexpr int kMaxStopBytes = 4096;  // of one stop string

  // INVALID_ARGUMENT for too many strings, or one that is empty, too long or not UTF-8. Without strings the
  // matcher passes everything through.
  static absl::StatusOr<StopMatcher> Create(std::span<const std::string> stops);

  // Adds the next piece and returns what can be emitted: all text so far without its longest suffix that is a
  // proper prefix of a stop string. Emits whole characters if it is given whole characters. Empty after a
  // match. If `counts` is false, stop strings that end in this piece are text like any other.
  std::string Append(std::string_view piece, bool counts = true);

  // Ends the text and returns what was held back. Empty after a match.
  std::string Flush() {
    emitted_ += held_.size();
    state_ = 0;
    return std::exchange(held_, std::string());
  }

  const std::optional<StopMatch>& match() const { return match_; }

 private:
  // A node is a prefix of a stop string; node 0 is the empty prefix.
  struct Node {
    int32_t depth = 0;      // length of the prefix
    int32_t fail = 0;       // the longest proper suffix that is also a node
    int32_t stop = -1;      // the longest stop string that is a suffix of this prefix; -1 if there is none
    int32_t stop_size = 0;  // its length
  };

  StopMatcher() = default;
  int32_t Next(int32_t node, char byte) const {
    while (true) {
      if (const auto child = children_.find({node, byte}); child != children_.end()) return child->second;
      if (node == 0) return 0;
      node = nodes_[node].fail;
    }
  }

  std::vector<Node> nodes_;
  absl::flat_hash_map<std::pair<int32_t, char>, int32_t> children_;

  int32_t state_ = 0;
  std::string held_;
  int64_t pieces_ = 0;
  size_t emitted_ = 0;
  std::optional<StopMatch> match_;
};

}  // namespace outrider
