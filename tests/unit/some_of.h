// How many cases of a numeric test run under a sanitizer, which takes ten times as long for each.
#pragma once

#include <algorithm>
#include <cstdlib>

namespace outrider {

// How many of `all` seeds or turns to run: a tenth of them under a sanitizer, at least one; all of them
// elsewhere, and with OUTRIDER_TEST_FULL.
inline int SomeOf(int all) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  if (std::getenv("OUTRIDER_TEST_FULL") == nullptr) return std::max(all / 10, 1);
#endif
  return all;
}

}  // namespace outrider
