// What every folder shares. Compiled for GPUs too.
#pragma once

#include <cstdint>

namespace outrider {

// A token id, in [0, vocabulary size).
using TokenId = int32_t;

// Most tokens that a round can draft, whoever drafts and whatever judges.
inline constexpr int kMaxDraftTokens = 31;

}  // namespace outrider
