#include "common/kv/cached_sequence.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/kv/prefix_hash.h"
#include "common/spec/check.h"
#include "common/spec/status.h"

namespace outrider {

CachedSequence::CachedSequence(BlockPool* pool, int block_size)
    : hashes_{kEmptyPrefixHash}, table_(pool, block_size) {}

absl::Status CachedSequence::Reconcile(uint32_t base, uint64_t prefix_hash, std::span<const TokenId> tokens) {
  if (tokens.empty()) return FieldError("tokens", "at least one", "empty");
  if (base > tokens_.size()) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "BASE_BEYOND_CACHED",
        absl::StrCat("base_beyond_cached: base ", base, " but ", tokens_.size(), " tokens are known"));
  }
  if (hashes_[base] != prefix_hash) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "PREFIX_MISMATCH",
                     absl::StrCat("prefix_mismatch: other tokens are known before base ", base));
  }
  Truncate(static_cast<int>(base));
  for (TokenId token : tokens) Append(token);
  return absl::OkStatus();
}

void CachedSequence::Append(TokenId token) {
  tokens_.push_back(token);
  hashes_.push_back(ExtendPrefixHash(hashes_.back(), token));
}

void CachedSequence::Truncate(int n) {
  OUTRIDER_CHECK(n >= 0 && n <= size());
  tokens_.resize(n);
  hashes_.resize(n + 1);
  num_computed_ = std::min(num_computed_, n);
  table_.Truncate(n);
}

void CachedSequence::Keep(int n, std::span<const int> path) {
  OUTRIDER_CHECK(path.empty() || path.back() == static_cast<int>(path.size()) - 1);
  Truncate(n + static_cast<int>(path.size()));
}

void CachedSequence::MarkComputed(int n) {
  OUTRIDER_CHECK(n >= num_computed_ && n <= size() && n <= table_.capacity());
  num_computed_ = n;
}

void CachedSequence::Fork(const CachedSequence& from, int n) {
  OUTRIDER_CHECK(tokens_.empty() && n >= 0 && n <= from.size());
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
