// Errors as absl::Status inside and google.rpc.Status with one ErrorInfo on the wire.
//
// The reason and the metadata of an error ride in the status as an ErrorInfo payload, so that they survive
// from where the error is found to the client. Folders that know no protobuf begin the message with the
// reason instead, in lower case and followed by a colon or the end ("kv_exhausted: ..."); it becomes
// KV_EXHAUSTED. Otherwise the code's name is the reason.
#pragma once

#include <grpcpp/support/status.h>

#include <initializer_list>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "google/rpc/status.pb.h"

namespace outrider {

// A status of `code` whose ErrorInfo has `reason` (UPPER_SNAKE_CASE, stable) and the metadata.
absl::Status MakeError(absl::StatusCode code, absl::string_view reason, absl::string_view message,
                       std::initializer_list<std::pair<absl::string_view, std::string>> metadata = {});

// INVALID_ARGUMENT, reason FIELD_INVALID: `field` names the request's field, `range` what it allows.
absl::Status FieldError(absl::string_view field, absl::string_view range, absl::string_view problem);

// RESOURCE_EXHAUSTED with a RetryInfo.
absl::Status BusyError(absl::string_view reason, absl::string_view message, absl::Duration retry_after);

// The reason of a status, as above.
std::string ErrorReason(const absl::Status& status);

// What the error's ErrorInfo says under `key` ("field" and "range" of a FieldError); empty if nothing.
std::string ErrorMetadata(const absl::Status& status, const std::string& key);

// When to come back, of an error with a RetryInfo; else zero.
absl::Duration RetryDelay(const absl::Status& status);

// To and from the wire. Payloads travel as details.
google::rpc::Status ToProto(const absl::Status& status);
absl::Status FromProto(const google::rpc::Status& status);
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace outrider
