#include "common/kv/cached_sequence.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
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

void CachedSequence::Truncate(int n) {
  OUTRIDER_CHECK(n >= 0 && n <= size());
  parents_.resize(std::max(n - tree_begin(), 0));
  Rewind(n);
  table_.Truncate(n);
}

void CachedSequence::Rewind(int n) {
  OUTRIDER_CHECK(n >= 0 && n <= size());
  tokens_.resize(n);
  hashes_.resize(n + 1);
  num_computed_ = std::min(num_computed_, n);
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
  std::vector<int> matched;  // the length of each node's path if it matches, else 0
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

BlockTable::BlockTable(BlockPool* pool, int block_size) : pool_(pool), block_size_(block_size) {
  OUTRIDER_CHECK(pool != nullptr && block_size > 0);
}

BlockTable::BlockTable(BlockTable&& other) noexcept
    : pool_(other.pool_), block_size_(other.block_size_), blocks_(std::exchange(other.blocks_, {})) {}

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  if (this == &other) return *this;
  Clear();
  pool_ = other.pool_;
  block_size_ = other.block_size_;
  blocks_ = std::exchange(other.blocks_, {});
  return *this;
}

int BlockTable::BlocksNeeded(int begin, int end) const {
  if (end <= begin) return 0;
  int needed = std::max(BlocksFor(end) - static_cast<int>(blocks_.size()), 0);
  for (int i = begin / block_size_; i < BlocksFor(end) && i < static_cast<int>(blocks_.size()); ++i) {
    if (!pool_->writable(blocks_[i])) ++needed;
  }
  return needed;
}

absl::StatusOr<std::vector<BlockCopy>> BlockTable::Reserve(int begin, int end) {
  OUTRIDER_CHECK(begin >= 0 && begin <= capacity());
  std::vector<BlockCopy> copies;
  if (end <= begin) return copies;
  const int needed = BlocksNeeded(begin, end);
  if (needed > pool_->num_available()) {
    return MakeError(absl::StatusCode::kResourceExhausted, "KV_BLOCKS_EXHAUSTED",
                     absl::StrCat(needed, " blocks needed, ", pool_->num_available(), " of ",
                                  pool_->num_blocks(), " available"));
  }
  const int held = static_cast<int>(blocks_.size());
  for (int i = begin / block_size_; i < BlocksFor(end); ++i) {
    if (i < held && pool_->writable(blocks_[i])) continue;
    const BlockId fresh = *pool_->Allocate();
    if (i >= held) {
      blocks_.push_back(fresh);
      continue;
    }
    // Only the first block can hold positions below `begin`. Later shared blocks are overwritten entirely, so
    // they need no copy.
    if (i == begin / block_size_ && begin % block_size_ != 0) copies.push_back({blocks_[i], fresh});
    pool_->Unref(blocks_[i]);
    blocks_[i] = fresh;
  }
  return copies;
}

void BlockTable::Truncate(int tokens) {
  OUTRIDER_CHECK(tokens >= 0);
  while (static_cast<int>(blocks_.size()) > BlocksFor(tokens)) {
    pool_->Unref(blocks_.back());
    blocks_.pop_back();
  }
}

}  // namespace outrider
