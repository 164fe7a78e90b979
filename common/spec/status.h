// Errors with a stable reason and metadata, as payloads of an absl::Status.
//
// A payload survives from where the error is found to the client: common/rpc/error.h turns it into
// google.rpc.ErrorInfo and back. Pure functions, any thread.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace outrider {

// The reason of every FieldError.
inline constexpr char kFieldInvalid[] = "FIELD_INVALID";

using ErrorMetadata = std::initializer_list<std::pair<absl::string_view, absl::string_view>>;

// A status of `code`, with a reason (UPPER_SNAKE_CASE, stable) and metadata by key.
absl::Status MakeError(absl::StatusCode code, absl::string_view reason, absl::string_view message,
                       ErrorMetadata metadata = {});

// INVALID_ARGUMENT whose message is absl::StrCat of the parts. InvalidFor also sets a reason.
template <class... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}
template <class... Parts>
absl::Status InvalidFor(absl::string_view reason, const Parts&... parts) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason, absl::StrCat(parts...));
}

// INVALID_ARGUMENT "FIELD: PROBLEM; allowed: RANGE".
absl::Status FieldError(absl::string_view field, absl::string_view range, absl::string_view problem);
// The same with a message of its own.
absl::Status FieldError(absl::string_view field, absl::string_view range, absl::string_view problem,
                        absl::string_view message);

// The same error about field "PARENT.FIELD" if it is a FieldError; any other status unchanged.
absl::Status FieldErrorUnder(absl::string_view parent, const absl::Status& status);

// A FieldError whose message is "FIELD: VALUE is not in RANGE" and whose problem is the value.
template <class T>
absl::Status OutOfRange(absl::string_view field, const T& value, absl::string_view range) {
  const std::string problem = absl::StrCat(value);
  return FieldError(field, range, problem, absl::StrCat(field, ": ", problem, " is not in ", range));
}

// INTERNAL, reason LOGITS_NOT_FINITE: a model gave a logit that is NaN or infinite.
absl::Status NotFiniteError();

// The status's reason, or the name of its code if it has none.
std::string ReasonOf(const absl::Status& status);

// The status's metadata under `key` ("field" and "range" of a FieldError); empty if there is none.
std::string MetadataOf(const absl::Status& status, absl::string_view key);

// Payloads whose type has this prefix are metadata; the rest of the type is the key. The reason has the key
// "reason".
inline constexpr char kMetadataType[] = "outrider/";
// The problem of a FieldError. It stays in the process: on the wire it is part of the message.
inline constexpr char kProblemType[] = "outrider-problem";

// The text; if it is longer than `most` bytes, its beginning, cut after a whole UTF-8 character, and its
// length.
inline std::string Excerpt(absl::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return absl::StrCat(text.substr(0, end), "... (", text.size(), " bytes)");
}

// The error that OUTRIDER_TRY returns, and the value that it evaluates to.
namespace try_internal {
inline absl::Status ErrorOf(absl::Status& status) { return std::move(status); }
inline void ValueOf(const absl::Status&) {}
template <class T>
absl::Status ErrorOf(absl::StatusOr<T>& value) {
  return std::move(value).status();
}
template <class T>
T ValueOf(absl::StatusOr<T>& value) {
  return *std::move(value);
}
}  // namespace try_internal

}  // namespace outrider

// Evaluates to a StatusOr's value, or to nothing for a Status. The enclosing function returns an error. Use
// it as a statement, or as all of an initialiser or of the right side of an assignment; never as an argument.
#define OUTRIDER_TRY(...)                                                               \
  __extension__({                                                                       \
    auto outrider_tried = (__VA_ARGS__);                                                \
    if (!outrider_tried.ok()) return ::outrider::try_internal::ErrorOf(outrider_tried); \
    ::outrider::try_internal::ValueOf(outrider_tried);                                  \
  })
