// Typed access to the fields of a JSON object that a client sent.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace outrider {

// Null counts as absent, as everywhere in OpenAI's API. The first wrong field sets the status, an
// INVALID_ARGUMENT that names it; wrong fields read as absent. One thread. The object must outlive this.
class JsonFields {
 public:
  // `object` is a JSON object.
  explicit JsonFields(const nlohmann::json& object) : object_(object) {}

  // The field, unless it is absent.
  const nlohmann::json* Find(const char* name) const;

  std::optional<bool> Bool(const char* name);
  std::optional<double> Number(const char* name);
  std::optional<std::string> String(const char* name);
  // Whole numbers from 0 to the largest of 32 bits.
  std::optional<uint32_t> Count(const char* name);
  // Whole numbers of 64 bits; negative ones as their two's complement.
  std::optional<uint64_t> Bits(const char* name);
  // A list of token ids.
  std::vector<uint32_t> TokenIds(const char* name);

  // Declares a field wrong, unless one already is.
  void Refuse(const char* name, const std::string& allowed, const std::string& problem);
  void Fail(absl::Status status);

  const absl::Status& status() const { return status_; }

 private:
  const nlohmann::json& object_;
  absl::Status status_;
};

// How messages show a value: as itself, or only its kind if it is long.
std::string Shown(const nlohmann::json& value);

// The ids, if `value` is a list of nothing else.
std::optional<std::vector<uint32_t>> AsTokenIds(const nlohmann::json& value);

}  // namespace outrider
