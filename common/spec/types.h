// Types that every folder shares. Compiled for GPUs too.
#pragma once

#include <cstdint>

namespace outrider {

// A token id, in [0, vocabulary size).
using TokenId = int32_t;

// The most tokens that a round can draft, with any drafter and any rule.
inline constexpr int kMaxDraftTokens = 31;

}  // namespace outrider
