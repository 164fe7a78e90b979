// Errors on the wire: converts absl::Status, with its reason and metadata (common/spec/status.h), to
// google.rpc.Status with one ErrorInfo, and a RetryInfo where a client should retry.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/spec/status.h"
#include "google/rpc/status.pb.h"

namespace outrider {

// RESOURCE_EXHAUSTED with a RetryInfo of `retry_after`.
absl::Status BusyError(absl::string_view reason, absl::string_view message, absl::Duration retry_after);

// The error with a RetryInfo of `retry_after`, which replaces an earlier one.
absl::Status WithRetryDelay(absl::Status status, absl::Duration retry_after);

// The delay of the error's RetryInfo; zero if it has none.
absl::Duration RetryDelay(const absl::Status& status);

// Payloads of other types travel as details of their own. Long texts are cut.
google::rpc::Status ToProto(const absl::Status& status);
absl::Status FromProto(const google::rpc::Status& proto);
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace outrider
