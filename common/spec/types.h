// Types that every folder shares, and the one macro of the code that host and device share. Compiled for GPUs
// too.
#pragma once

#include <cstdint>

// Such a function is compiled for the device by nvcc, and for the host by every other compiler. Headers with
// such functions include nothing that nvcc cannot compile.
#ifdef __CUDACC__
#define OUTRIDER_HD __device__
#else
#define OUTRIDER_HD
#endif

namespace outrider {

// A token id, in [0, vocabulary size).
using TokenId = int32_t;

// The most tokens that a round can draft, with any drafter and any rule.
inline constexpr int kMaxDraftTokens = 31;

}  // namespace outrider
