#include "common/engine/decoder/field_reader.h"

#include <cmath>
#include <cstdint>

namespace outrider {

using Json = nlohmann::json;

int FieldReader::Int(const char* name, int low, int high) {
  if (!Has(name)) return Fail(name, "is missing"), 0;
  const Json& value = object_[name];
  if (!value.is_number_integer()) return Fail(name, "is not an integer: ", value.dump()), 0;
  const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t{0x7fffffffffffffff} : true;
  const int64_t number = fits ? value.get<int64_t>() : std::numeric_limits<int64_t>::max();
  if (number < low || number > high) return Fail(name, "is out of range: ", value.dump()), 0;
  return static_cast<int>(number);
}

double FieldReader::Positive(const char* name) {
  if (!Has(name)) return Fail(name, "is missing"), 1;
  const Json& value = object_[name];
  const double number = value.is_number() ? value.get<double>() : 0;
  if (!(number > 0) || !std::isfinite(number)) {
    return Fail(name, "is not a positive number: ", value.dump()), 1;
  }
  return number;
}

bool FieldReader::Bool(const char* name, bool otherwise) {
  if (!Has(name)) return otherwise;
  if (!object_[name].is_boolean()) {
    return Fail(name, "is not true or false: ", object_[name].dump()), otherwise;
  }
  return object_[name].get<bool>();
}

std::string FieldReader::String(const char* name, const char* otherwise) {
  if (!Has(name)) return otherwise;
  if (!object_[name].is_string()) return Fail(name, "is not a string: ", object_[name].dump()), otherwise;
  return object_[name].get<std::string>();
}

std::vector<TokenId> FieldReader::TokenIds(const char* name, int vocab_size) {
  std::vector<TokenId> ids;
  if (!Has(name)) return ids;
  const Json& value = object_[name];
  for (const Json& id : value.is_array() ? value : Json::array({value})) {
    if (!id.is_number_integer() || id < 0 || id >= vocab_size) {
      return Fail(name, "is not a token id in [0, ", vocab_size, "): ", id.dump()), ids;
    }
    ids.push_back(id.get<TokenId>());
  }
  return ids;
}

FieldReader FieldReader::Nested(const char* name) {
  if (!object_[name].is_object()) Fail(name, "is not an object");
  FieldReader nested(path_, object_[name]);
  nested.prefix_ = absl::StrCat(prefix_, name, ".");
  nested.status_ = status_;
  return nested;
}

void RequireValue(FieldReader& fields, const char* field, const char* value) {
  if (fields.String(field, value) != value) {
    fields.Fail(field, "is not \"", value, "\": ", fields.At(field).dump());
  }
}

void RefuseTrue(FieldReader& fields, const char* field, const char* why) {
  if (fields.Bool(field, false)) fields.Fail(field, "is true: ", why);
}

}  // namespace outrider
