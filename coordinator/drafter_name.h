// What people call a drafter: in metrics and in errors.
#pragma once

#include <string>

#include "absl/strings/ascii.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// "model" for DRAFTER_KIND_MODEL; of a value that is none, its number.
inline std::string DrafterName(v1::DrafterKind kind) {
  if (!v1::DrafterKind_IsValid(kind)) return std::to_string(static_cast<int>(kind));
  return absl::AsciiStrToLower(v1::DrafterKind_Name(kind).substr(sizeof("DRAFTER_KIND_") - 1));
}

// The other way round; DRAFTER_KIND_UNSPECIFIED for a name that is none.
inline v1::DrafterKind DrafterOf(const std::string& name) {
  v1::DrafterKind kind = v1::DRAFTER_KIND_UNSPECIFIED;
  v1::DrafterKind_Parse("DRAFTER_KIND_" + absl::AsciiStrToUpper(name), &kind);
  return kind;
}

}  // namespace outrider
