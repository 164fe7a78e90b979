// Errors about a field that the client knows by another name than the service.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/spec/status.h"

namespace outrider {

// The message of an error about a field. If it begins with the field's name, `name` takes that place.
inline std::string MessageAbout(const std::string& name, const absl::Status& status) {
  const std::string field = MetadataOf(status, "field");
  std::string message(status.message());
  if (absl::StartsWith(message, absl::StrCat(field, ":"))) message.replace(0, field.size(), name);
  return message;
}

}  // namespace outrider
