#include "common/spec/status.h"

#include "absl/strings/cord.h"

namespace outrider {
namespace {

constexpr char kReason[] = "reason";

void SetMetadata(absl::string_view key, absl::string_view value, absl::Status& status) {
  status.SetPayload(absl::StrCat(kMetadataType, key), absl::Cord(value));
}

}  // namespace

absl::Status MakeError(absl::StatusCode code, absl::string_view reason, absl::string_view message,
                       ErrorMetadata metadata) {
  absl::Status status(code, message);
  SetMetadata(kReason, reason, status);
  for (const auto& [key, value] : metadata) SetMetadata(key, value, status);
  return status;
}

absl::Status FieldError(absl::string_view field, absl::string_view range, absl::string_view problem) {
  return FieldError(field, range, problem, absl::StrCat(field, ": ", problem, "; allowed: ", range));
}

absl::Status FieldError(absl::string_view field, absl::string_view range, absl::string_view problem,
                        absl::string_view message) {
  absl::Status status = MakeError(absl::StatusCode::kInvalidArgument, kFieldInvalid, message,
                                  {{"field", field}, {"range", range}});
  status.SetPayload(kProblemType, absl::Cord(problem));
  return status;
}

absl::Status FieldErrorUnder(absl::string_view parent, const absl::Status& status) {
  if (ReasonOf(status) != kFieldInvalid) return status;
  const auto problem = status.GetPayload(kProblemType);
  return FieldError(absl::StrCat(parent, ".", MetadataOf(status, "field")), MetadataOf(status, "range"),
                    problem ? std::string(*problem) : std::string(status.message()));
}

absl::Status NotFiniteError() {
  return MakeError(absl::StatusCode::kInternal, "LOGITS_NOT_FINITE",
                   "logits_not_finite: a logit is NaN or infinite");
}

std::string ReasonOf(const absl::Status& status) {
  const std::string reason = MetadataOf(status, kReason);
  return reason.empty() ? absl::StatusCodeToString(status.code()) : reason;
}

std::string MetadataOf(const absl::Status& status, absl::string_view key) {
  const auto value = status.GetPayload(absl::StrCat(kMetadataType, key));
  return value ? std::string(*value) : "";
}

}  // namespace outrider
