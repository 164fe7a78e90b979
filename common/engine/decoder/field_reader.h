// Reads fields of a model's JSON files, with errors that name the field.
#pragma once

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
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
  // `object` must outlive the reader.
  FieldReader(std::string path, const nlohmann::json& object) : path_(std::move(path)), object_(object) {}

  // null counts as absent, as in transformers.
  bool Has(const char* name) const { return object_.contains(name) && !object_[name].is_null(); }
  // Whether the field is missing: for some fields, null is a value.
  bool IsAbsent(const char* name) const { return !object_.contains(name); }
  const nlohmann::json& At(const char* name) const { return object_[name]; }

  int Int(const char* name, int low, int high = std::numeric_limits<int>::max());
  double Positive(const char* name);
  bool Bool(const char* name, bool otherwise);
  std::string String(const char* name, const char* otherwise);
  // One id or a list of ids; empty if absent.
  std::vector<TokenId> TokenIds(const char* name, int vocab_size);

  // A reader of the object in this field, which must be present. Its errors are this one's.
  FieldReader Nested(const char* name);
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
  const nlohmann::json& object_;
  std::string prefix_;  // prepended to field names in errors
  std::shared_ptr<absl::Status> status_ = std::make_shared<absl::Status>();  // with those it is nested in
};

// Fails unless the string field, if there is one, has this value.
void RequireValue(FieldReader& fields, const char* field, const char* value);
// Fails if the field is true.
void RefuseTrue(FieldReader& fields, const char* field, const char* why);

}  // namespace outrider
