// Errors on the wire: absl::Status, with its reason and metadata (common/spec/status.h), as google.rpc.Status
// with one ErrorInfo, and RetryInfo where a client should come back.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/spec/status.h"
#include "google/rpc/status.pb.h"

namespace outrider {

// RESOURCE_EXHAUSTED with a RetryInfo.
absl::Status BusyError(absl::string_view reason, absl::string_view message, absl::Duration retry_after);

// When to come back, of an error with a RetryInfo; else zero.
absl::Duration RetryDelay(const absl::Status& status);

// To and from the wire. Payloads of other types travel as details of their own.
google::rpc::Status ToProto(const absl::Status& status);
absl::Status FromProto(const google::rpc::Status& proto);
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace outrider
