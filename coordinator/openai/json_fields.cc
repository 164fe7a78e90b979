#include "coordinator/openai/json_fields.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/error.h"
#include "common/text/json.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr size_t kLongestShown = 80;
constexpr uint32_t kMaxCount = std::numeric_limits<uint32_t>::max();

bool IsCount(const Json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{kMaxCount};
}

}  // namespace

std::string Shown(const Json& value) {
  std::string text = DumpJson(value);
  return text.size() <= kLongestShown ? text : absl::StrCat("a long ", value.type_name());
}

std::optional<std::vector<uint32_t>> AsTokenIds(const Json& value) {
  if (!value.is_array()) return std::nullopt;
  std::vector<uint32_t> ids;
  ids.reserve(value.size());
  for (const Json& id : value) {
    if (!IsCount(id)) return std::nullopt;
    ids.push_back(id.get<uint32_t>());
  }
  return ids;
}

const Json* JsonFields::Find(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> JsonFields::Bool(const char* name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  Refuse(name, "true or false", Shown(*value));
  return std::nullopt;
}

std::optional<double> JsonFields::Number(const char* name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) return value->get<double>();
  Refuse(name, "a number", Shown(*value));
  return std::nullopt;
}

std::optional<std::string> JsonFields::String(const char* name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  Refuse(name, "a string", Shown(*value));
  return std::nullopt;
}

std::optional<uint32_t> JsonFields::Count(const char* name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (IsCount(*value)) return value->get<uint32_t>();
  Refuse(name, absl::StrCat("whole numbers from 0 to ", kMaxCount), Shown(*value));
  return std::nullopt;
}

std::optional<uint64_t> JsonFields::Bits(const char* name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  if (value->is_number_integer()) return static_cast<uint64_t>(value->get<int64_t>());
  Refuse(name, "whole numbers of 64 bits", Shown(*value));
  return std::nullopt;
}

std::vector<uint32_t> JsonFields::TokenIds(const char* name) {
  const Json* value = Find(name);
  if (value == nullptr) return {};
  if (auto ids = AsTokenIds(*value)) return *std::move(ids);
  Refuse(name, "a list of token ids", Shown(*value));
  return {};
}

void JsonFields::Refuse(const char* name, const std::string& allowed, const std::string& problem) {
  Fail(FieldError(name, allowed, problem));
}

void JsonFields::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

}  // namespace outrider
