#include "common/kv/cached_sequence.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/kv/prefix_hash.h"
#include "common/spec/check.h"
#include "common/spec/status.h"

namespace outrider {

CachedSequence::CachedSequence(BlockPool* pool, int block_size)
    : hashes_{kEmptyPrefixHash}, table_(pool, block_size) {}

absl::StatusOr<std::vector<SlotMove>> CachedSequence::Reconcile(uint32_t base, uint64_t prefix_hash,
                                                                std::span<const TokenId> tokens) {
  if (tokens.empty()) return FieldError("tokens", "at least one", "empty");
  if (static_cast<int64_t>(base) > tree_begin()) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "BASE_BEYOND_CACHED",
        absl::StrCat("base_beyond_cached: base ", base, " but ", tree_begin(), " tokens are known"));
  }
  if (hashes_[base] != prefix_hash) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "PREFIX_MISMATCH",
                     absl::StrCat("prefix_mismatch: other tokens are known before base ", base));
  }
  const int n = static_cast<int>(base);
  std::vector<int> path;
  if (n == tree_begin()) path = NodesTo(DeepestMatch(tokens.first(tokens.size() - 1)));
  std::vector<SlotMove> moves = Keep(n, path);
  for (TokenId token : tokens.subspan(path.size())) Append(token);
  return moves;
}

void CachedSequence::Append(TokenId token) {
  OUTRIDER_CHECK(parents_.empty());
  tokens_.push_back(token);
  hashes_.push_back(ExtendPrefixHash(hashes_.back(), token));
}

void CachedSequence::AppendNode(TokenId token, int parent) {
  OUTRIDER_CHECK(parent >= -1 && parent < static_cast<int>(parents_.size()));
  hashes_.push_back(ExtendPrefixHash(hashes_[tree_begin() + parent + 1], token));
  tokens_.push_back(token);
  parents_.push_back(parent);
}

void CachedSequence::Truncate(int n) {
  OUTRIDER_CHECK(n >= 0 && n <= size());
  parents_.resize(std::max(n - tree_begin(), 0));
  tokens_.resize(n);
  hashes_.resize(n + 1);
  if (n < num_computed_) begun_.clear();
  num_computed_ = std::min(num_computed_, n);
  table_.Truncate(std::max(n, num_computed_ + static_cast<int>(begun_.size())));
}

void CachedSequence::DropBegun() {
  begun_.clear();
  for (int i = num_computed_; i < size(); ++i) begun_.push_back({tokens_[i], ParentOf(i)});
  OUTRIDER_CHECK(size() <= table_.capacity());
  Truncate(num_computed_);
}

bool CachedSequence::ForgetBegun() {
  const bool any = !begun_.empty();
  begun_.clear();
  if (any) table_.Truncate(size());
  return any;
}

int CachedSequence::num_begun() const {
  int count = 0;
  const int most = std::min(size() - num_computed_, static_cast<int>(begun_.size()));
  while (count < most && tokens_[num_computed_ + count] == begun_[count].token &&
         ParentOf(num_computed_ + count) == begun_[count].parent) {
    ++count;
  }
  return count;
}

std::vector<SlotMove> CachedSequence::Keep(int n, std::span<const int> path) {
  std::vector<SlotMove> moves;
  if (parents_.empty() || path.empty()) {
    OUTRIDER_CHECK(path.empty() || path.back() == static_cast<int>(path.size()) - 1);
    Truncate(n + static_cast<int>(path.size()));
    return moves;
  }
  OUTRIDER_CHECK(n == tree_begin());
  int computed = n;
  for (int parent = -1, to = n; int node : path) {
    OUTRIDER_CHECK(node > parent && node < static_cast<int>(parents_.size()) && parents_[node] == parent);
    const int from = n + node;
    tokens_[to] = tokens_[from];
    hashes_[to + 1] = hashes_[from + 1];
    if (from < num_computed_) {
      if (from != to) moves.push_back({from, to});
      computed = to + 1;
    }
    parent = node;
    ++to;
  }
  begun_.clear();
  num_computed_ = std::min(num_computed_, computed);
  Truncate(n + static_cast<int>(path.size()));
  parents_.clear();
  return moves;
}

std::vector<TokenId> CachedSequence::PathTo(int node) const {
  const int begin = tree_begin();
  std::vector<TokenId> tokens(tokens_.begin(), tokens_.begin() + begin);
  for (int step : NodesTo(node)) tokens.push_back(tokens_[begin + step]);
  return tokens;
}

std::vector<int> CachedSequence::NodesTo(int node) const {
  std::vector<int> nodes;
  for (; node >= 0; node = parents_[node]) nodes.push_back(node);
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

int CachedSequence::DeepestMatch(std::span<const TokenId> tokens) const {
  const int begin = tree_begin();
  int best = -1, best_length = 0;
  std::vector<int> matched;  // how long the path of each node is if it matches, else 0
  for (int node = 0; begin + node < num_computed_; ++node) {
    const int before = parents_[node] < 0 ? 0 : matched[parents_[node]];
    const bool follows = (parents_[node] < 0 || before > 0) && before < static_cast<int>(tokens.size());
    matched.push_back(follows && tokens[before] == tokens_[begin + node] ? before + 1 : 0);
    if (matched.back() > best_length) {
      best = node;
      best_length = matched.back();
    }
  }
  return best;
}

void CachedSequence::MarkComputed(int n) {
  OUTRIDER_CHECK(n >= num_computed_ && n <= size() && n <= table_.capacity());
  begun_.clear();
  num_computed_ = n;
}

void CachedSequence::Fork(const CachedSequence& from, int n) {
  OUTRIDER_CHECK(tokens_.empty() && n >= 0 && n <= from.tree_begin());
  tokens_.assign(from.tokens_.begin(), from.tokens_.begin() + n);
  hashes_.assign(from.hashes_.begin(), from.hashes_.begin() + n + 1);
  num_computed_ = std::min(n, from.num_computed_);
  table_.Fork(from.table_, num_computed_);
}

void CachedSequence::Adopt(std::span<const BlockId> blocks) {
  OUTRIDER_CHECK(num_computed_ == 0);
  table_.Clear();
  table_.Adopt(blocks);
  num_computed_ = table_.capacity();
  OUTRIDER_CHECK(num_computed_ <= size());
}

}  // namespace outrider
