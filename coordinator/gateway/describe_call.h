// Asks the service for its description.
#pragma once

#include "absl/status/statusor.h"
#include "common/net/asio.h"
#include "outrider/v1/inference.grpc.pb.h"

namespace outrider {

// `service` must outlive the answer, which comes within seconds. The coroutine's executor has one thread.
asio::awaitable<absl::StatusOr<v1::DescribeResponse>> Describe(v1::Inference::Stub* service);

}  // namespace outrider
