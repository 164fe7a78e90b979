// What followed which tokens in the recent past of one sequence.
#pragma once

#include <array>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/spec/types.h"

namespace outrider {

// Counts the tokens that follow each context of 1 to max_context tokens, within the last `history` tokens:
// what leaves the history leaves the counts, so that there are at most history * max_context of them. Not
// synchronised.
class NgramTable {
 public:
  static constexpr int kMaxContext = 3;

  // max_context in [1, kMaxContext], history at least 1.
  NgramTable(int max_context, size_t history) : max_context_(max_context), history_limit_(history) {}

  void Append(TokenId token);

  // What most often follows the last tokens of `tokens`, the most recent of those that tie. The longest
  // context that occurs decides, if it is of min_context tokens or more; otherwise there is none.
  std::optional<TokenId> Next(std::span<const TokenId> tokens, int min_context = 1) const;

  // How many pairs of context and continuation are counted.
  size_t size() const;

 private:
  using Context = std::array<TokenId, kMaxContext>;  // shorter ones begin with -1
  struct Continuation {
    TokenId token = 0;
    int count = 0;
    uint64_t last = 0;  // when it was counted last
  };

  static Context Last(std::span<const TokenId> tokens, int length);
  void Count(const Context& context, TokenId token);
  void Uncount(const Context& context, TokenId token);
  void ForgetOldest();

  const int max_context_;
  const size_t history_limit_;
  std::deque<TokenId> history_;
  uint64_t appended_ = 0;
  absl::flat_hash_map<Context, std::vector<Continuation>> continuations_;
};

}  // namespace outrider
