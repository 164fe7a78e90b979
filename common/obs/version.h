// Which version of the source a program was built from.
#pragma once

#include <string>

namespace outrider {

extern const char kVersion[];  // "0.1.0"

// The version and what git calls the commit: "0.1.0 (6ea1542b3a9c)". "+" follows a commit that files differed
// from. Without a commit where git knew of none.
std::string VersionAndCommit();

}  // namespace outrider
