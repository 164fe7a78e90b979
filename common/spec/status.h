// Errors with a stable reason, and with what a caller has to know of them, as payloads of an absl::Status.
//
// A payload survives from where the error is found to the client: common/rpc/error.h turns it into
// google.rpc.ErrorInfo and back. Pure functions, any thread.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace outrider {

// The reason of every FieldError.
inline constexpr char kFieldInvalid[] = "FIELD_INVALID";

using ErrorMetadata = std::initializer_list<std::pair<absl::string_view, absl::string_view>>;

// A status of `code`, with a reason (UPPER_SNAKE_CASE, stable) and what else there is to know, by key.
absl::Status MakeError(absl::StatusCode code, absl::string_view reason, absl::string_view message,
                       ErrorMetadata metadata = {});

// INVALID_ARGUMENT "FIELD: PROBLEM; allowed: RANGE".
absl::Status FieldError(absl::string_view field, absl::string_view range, absl::string_view problem);
// The same with another message.
absl::Status FieldError(absl::string_view field, absl::string_view range, absl::string_view problem,
                        absl::string_view message);

// The same, about a field of `parent`; any other status as it is.
absl::Status FieldErrorUnder(absl::string_view parent, const absl::Status& status);

// INVALID_ARGUMENT "FIELD: VALUE is not in RANGE", whose problem is the value.
template <class T>
absl::Status OutOfRange(absl::string_view field, const T& value, absl::string_view range) {
  const std::string problem = absl::StrCat(value);
  return FieldError(field, range, problem, absl::StrCat(field, ": ", problem, " is not in ", range));
}

// INTERNAL, reason LOGITS_NOT_FINITE: a model gave a logit that is NaN or infinite.
absl::Status NotFiniteError();

// The reason that the status was given; its code's name if it was given none.
std::string ReasonOf(const absl::Status& status);

// What the status was given under `key` ("field" and "range" of a FieldError); empty if nothing.
std::string MetadataOf(const absl::Status& status, absl::string_view key);

// Payloads of these types are metadata; what follows the prefix is the key. The reason has the key "reason".
inline constexpr char kMetadataType[] = "outrider/";
// The problem of a FieldError. It stays in the process: on the wire it is part of the message.
inline constexpr char kProblemType[] = "outrider-problem";

// The text, or if it is longer than `most` bytes its beginning, which ends with a whole character of UTF-8,
// and how long it was.
inline std::string Excerpt(absl::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return absl::StrCat(text.substr(0, end), "... (", text.size(), " bytes)");
}

}  // namespace outrider
