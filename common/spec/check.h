// Stops the process when an invariant is broken: a defect of the program, never bad input (that is a Status).
#pragma once

#include <cstdio>
#include <cstdlib>

// `condition` must hold; it is evaluated in every build.
#define OUTRIDER_CHECK(condition)                      \
  (static_cast<bool>(condition) ? static_cast<void>(0) \
                                : ::outrider::CheckFailed(#condition, __FILE__, __LINE__))

namespace outrider {

[[noreturn]] inline void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, condition);
  std::abort();
}

}  // namespace outrider
