// JSON objects in files of a model's folder.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/text/json.h"
#include "common/text/read_file.h"

namespace outrider {

// The object in the file at `path`. `Json` is nlohmann::json or nlohmann::ordered_json. NOT_FOUND if the file
// cannot be read, INVALID_ARGUMENT if it has no object; both name it.
template <typename Json = nlohmann::json>
absl::StatusOr<Json> JsonObjectIn(const std::string& path) {
  const std::optional<std::string> text = ReadFile(path);
  if (!text) return absl::NotFoundError(absl::StrCat(path, ": cannot be read, or is empty"));
  absl::StatusOr<Json> json = ParseJson<Json>(*text);
  if (!json.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", json.status().message()));
  if (!json->is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": not a JSON object"));
  return json;
}

// The same, and an empty object where there is no file.
template <typename Json = nlohmann::json>
absl::StatusOr<Json> JsonObjectIfThere(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return Json::object();
  return JsonObjectIn<Json>(path);
}

}  // namespace outrider
