// Typed access to the fields of a JSON object that a client sent.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/error.h"
#include "common/text/json.h"

namespace outrider {

inline constexpr uint32_t kMaxCount = std::numeric_limits<uint32_t>::max();

// Whether the value is a whole number from 0 to kMaxCount.
inline bool IsCount(const nlohmann::json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{kMaxCount};
}

// The value as error messages show it: in full, or only its type if it is long.
inline std::string Shown(const nlohmann::json& value) {
  constexpr size_t kLongestShown = 80;
  std::string text = DumpJson(value);
  return text.size() <= kLongestShown ? text : absl::StrCat("a long ", value.type_name());
}

// The ids, if `value` is a list of token ids and nothing else.
inline std::optional<std::vector<uint32_t>> AsTokenIds(const nlohmann::json& value) {
  if (!value.is_array()) return std::nullopt;
  std::vector<uint32_t> ids;
  ids.reserve(value.size());
  for (const nlohmann::json& id : value) {
    if (!IsCount(id)) return std::nullopt;
    ids.push_back(id.get<uint32_t>());
  }
  return ids;
}

// JSON whose objects keep the order of their members, which matters in templates and in schemas.
using OrderedJson = nlohmann::ordered_json;

// Reads fields by name and type. Null counts as absent, as everywhere in OpenAI's API. The first wrong field
// sets the status, an INVALID_ARGUMENT that names it; wrong fields read as absent. One thread.
class JsonFields {
 public:
  // `object` is a JSON object, and `text` is what it was parsed from, for InOrder. Both must outlive this.
  explicit JsonFields(const nlohmann::json& object, std::string_view text = "")
      : object_(object), text_(text) {}

  // The field; null if it is absent.
  const nlohmann::json* Find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  std::optional<bool> Bool(const char* name) {
    return Get<bool>(name, &nlohmann::json::is_boolean, "true or false");
  }
  std::optional<double> Number(const char* name) {
    return Get<double>(name, &nlohmann::json::is_number, "a number");
  }
  std::optional<std::string> String(const char* name) {
    return Get<std::string>(name, &nlohmann::json::is_string, "a string");
  }
  // Whole numbers from 0 to kMaxCount.
  std::optional<uint32_t> Count(const char* name) {
    return Get<uint32_t>(name, IsCount, absl::StrCat("whole numbers from 0 to ", kMaxCount));
  }
  // Whole numbers of 64 bits; negative ones as their two's complement.
  std::optional<uint64_t> Bits(const char* name) {
    return Get<uint64_t>(name, &nlohmann::json::is_number_integer, "whole numbers of 64 bits");
  }
  std::vector<uint32_t> TokenIds(const char* name) {
    const nlohmann::json* value = Find(name);
    if (value == nullptr) return {};
    if (auto ids = AsTokenIds(*value)) return *std::move(ids);
    Refuse(name, "a list of token ids", Shown(*value));
    return {};
  }

  // Returns the object with its members in their order, valid as long as this. If it has too many values,
  // refuses the field `name`, which needs the order, and returns null: each lookup in an ordered object is a
  // linear search.
  const OrderedJson* InOrder(const char* name) {
    constexpr size_t kMaxOrderedValues = 8192;
    if (ordered_) return &*ordered_;
    const size_t values = MeasureJson(text_).values;
    if (values <= kMaxOrderedValues) return &ordered_.emplace(*ParseJson<OrderedJson>(text_));
    Refuse(name, absl::StrCat("a body of at most ", kMaxOrderedValues, " texts, lists and objects"),
           absl::StrCat(values, " of them"));
    return nullptr;
  }

  // Declares a field wrong. Only the first wrong field counts.
  void Refuse(const char* name, const std::string& allowed, const std::string& problem) {
    Fail(FieldError(name, allowed, problem));
  }
  void Fail(absl::Status status) { status_.Update(std::move(status)); }

  const absl::Status& status() const { return status_; }

 private:
  // The value of a field; nullopt if absent. If `is` is false for the value, refuses it, naming `allowed`.
  template <class T, class Is>
  std::optional<T> Get(const char* name, Is is, const std::string& allowed) {
    const nlohmann::json* value = Find(name);
    if (value == nullptr) return std::nullopt;
    if (std::invoke(is, *value)) return value->get<T>();
    Refuse(name, allowed, Shown(*value));
    return std::nullopt;
  }

  const nlohmann::json& object_;
  const std::string_view text_;
  std::optional<OrderedJson> ordered_;
  absl::Status status_;
};

// Parses a body, which must be a JSON object. INVALID_ARGUMENT, reason INVALID_JSON.
inline absl::StatusOr<nlohmann::json> ParseBody(const std::string& body) {
  // Each value takes dozens of bytes of memory, however few it has in the body.
  constexpr size_t kMaxValues = size_t{1} << 16;
  const JsonSize size = MeasureJson(body);
  if (size.values > kMaxValues) {
    return InvalidFor("INVALID_JSON", "the body has more than ", kMaxValues, " texts, lists and objects");
  }
  if (size.depth > kMaxJsonDepth) {
    return InvalidFor("INVALID_JSON", "the body nests more than ", kMaxJsonDepth, " deep");
  }
  absl::StatusOr<nlohmann::json> json = ParseJson(body);
  if (!json.ok() || !json->is_object()) {
    return InvalidFor("INVALID_JSON", "the body is not a JSON object");
  }
  return json;
}

}  // namespace outrider
