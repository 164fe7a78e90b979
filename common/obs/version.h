// The version of the source that a program was built from.
#pragma once

#include <string>

namespace outrider {

extern const char kVersion[];  // "0.1.0"

// The version and the git commit: "0.1.0 (6ea1542b3a9c)". A "+" follows the commit if files differed from it.
// The version alone if git knew no commit.
std::string VersionAndCommit();

}  // namespace outrider
