#include "common/obs/version.h"

#include "absl/strings/str_cat.h"
#include "common/obs/commit.h"

namespace outrider {

const char kVersion[] = OUTRIDER_VERSION;

std::string VersionAndCommit() {
  const absl::string_view commit = kCommit;
  return commit.empty() ? kVersion : absl::StrCat(kVersion, " (", commit, ")");
}

}  // namespace outrider
