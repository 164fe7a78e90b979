// Reads fields of a model's JSON files, with errors that name the field.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/spec/status.h"
#include "common/spec/types.h"
#include "common/text/json.h"

namespace outrider {

// Reads the fields of one JSON object. Keeps the first error, which names the file and the field. A wrong or
// missing field still yields some value: check status() before using any.
class FieldReader {
 public:
  using Json = nlohmann::json;

  // `object` must outlive the reader.
  FieldReader(std::string path, const Json& object) : path_(std::move(path)), object_(object) {}

  // null counts as absent, as in transformers.
  bool Has(const char* name) const { return object_.contains(name) && !object_[name].is_null(); }
  // Whether the field is missing. A null field is not: for some fields, null is a value.
  bool IsAbsent(const char* name) const { return !object_.contains(name); }
  const Json& At(const char* name) const { return object_[name]; }

  int Int(const char* name, int low, int high = std::numeric_limits<int>::max()) {
    if (!Has(name)) return Fail(name, "is missing"), 0;
    const Json& value = object_[name];
    if (!value.is_number_integer()) return Fail(name, "is not an integer: ", DumpJson(value)), 0;
    const bool fits = !value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{0x7fffffffffffffff};
    const int64_t number = fits ? value.get<int64_t>() : std::numeric_limits<int64_t>::max();
    if (number < low || number > high) return Fail(name, "is out of range: ", DumpJson(value)), 0;
    return static_cast<int>(number);
  }
  double Positive(const char* name) {
    if (!Has(name)) return Fail(name, "is missing"), 1;
    const Json& value = object_[name];
    const double number = value.is_number() ? value.get<double>() : 0;
    if (number > 0 && std::isfinite(number)) return number;
    return Fail(name, "is not a positive number: ", DumpJson(value)), 1;
  }
  bool Bool(const char* name, bool otherwise) {
    if (!Has(name)) return otherwise;
    if (object_[name].is_boolean()) return object_[name].get<bool>();
    return Fail(name, "is not true or false: ", DumpJson(object_[name])), otherwise;
  }
  std::string String(const char* name, const char* otherwise) {
    if (!Has(name)) return otherwise;
    if (object_[name].is_string()) return object_[name].get<std::string>();
    return Fail(name, "is not a string: ", DumpJson(object_[name])), otherwise;
  }
  // One id or a list of ids; empty if absent.
  std::vector<TokenId> TokenIds(const char* name, int vocab_size) {
    std::vector<TokenId> ids;
    if (!Has(name)) return ids;
    const Json& value = object_[name];
    for (const Json& id : value.is_array() ? value : Json::array({value})) {
      if (!id.is_number_integer() || id < 0 || id >= vocab_size) {
        return Fail(name, "is not a token id in [0, ", vocab_size, "): ", DumpJson(id)), ids;
      }
      ids.push_back(id.get<TokenId>());
    }
    return ids;
  }
  // The first of them; none if the field is absent.
  std::optional<TokenId> FirstTokenId(const char* name, int vocab_size) {
    const std::vector<TokenId> ids = TokenIds(name, vocab_size);
    return ids.empty() ? std::nullopt : std::optional(ids[0]);
  }

  // A reader of the object in this field, which must be present. Its errors count as this reader's.
  FieldReader Nested(const char* name) {
    if (!object_[name].is_object()) Fail(name, "is not an object");
    FieldReader nested(path_, object_[name]);
    nested.prefix_ = absl::StrCat(prefix_, name, ".");
    nested.status_ = status_;
    return nested;
  }
  // Takes over the error of a reader of another object.
  void TakeError(const FieldReader& other) {
    if (status_->ok()) *status_ = other.status();
  }

  template <typename... Parts>
  void Fail(absl::string_view name, const Parts&... parts) {
    if (status_->ok()) *status_ = Invalid(path_, ": ", prefix_, name, " ", parts...);
  }

  const absl::Status& status() const { return *status_; }

 private:
  const std::string path_;
  const Json& object_;
  std::string prefix_;  // prepended to field names in errors
  std::shared_ptr<absl::Status> status_ = std::make_shared<absl::Status>();  // shared with nested readers
};

// Fails unless the string field, if there is one, has this value.
inline void RequireValue(FieldReader& fields, const char* field, const char* value) {
  if (fields.String(field, value) != value) {
    fields.Fail(field, "is not \"", value, "\": ", DumpJson(fields.At(field)));
  }
}
// Fails if the field is true.
inline void RefuseTrue(FieldReader& fields, const char* field, const char* why) {
  if (fields.Bool(field, false)) fields.Fail(field, "is true: ", why);
}

}  // namespace outrider
