// Types that every folder shares, and the macro of the code that host and device share. nvcc compiles this
// header too.
#pragma once

#include <cstdint>

// Marks a function that nvcc compiles for the device and every other compiler for the host. A header with
// such functions includes nothing that nvcc cannot compile.
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
