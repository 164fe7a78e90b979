// The names of the one model that a coordinator serves.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/spec/status.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// Returns `served`, or if that is empty the target's own name. Requests may use any, answers use the first.
// Empty while no target is known.
inline std::vector<std::string> ModelNames(const std::vector<std::string>& served,
                                           const v1::DescribeResponse& description) {
  if (!served.empty() || !description.has_target()) return served;
  return {description.target().model()};
}

// NOT_FOUND if `name` is none of `names`. OK while these are unknown: the request waits for a target later.
inline absl::Status CheckModel(const std::string& name, const std::vector<std::string>& names) {
  if (name.empty() || names.empty() || std::ranges::count(names, name) > 0) return absl::OkStatus();
  return MakeError(absl::StatusCode::kNotFound, "MODEL_NOT_FOUND",
                   absl::StrCat("the model '", name, "' is not served; '", names.front(), "' is"),
                   {{"field", "model"}});
}

// The error of a call that needs a target while none is known.
inline absl::Status NoTarget() {
  return MakeError(absl::StatusCode::kUnavailable, "TARGET_UNAVAILABLE", "the target is not reachable");
}

}  // namespace outrider
