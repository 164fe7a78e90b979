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

}  // namespace outrider
