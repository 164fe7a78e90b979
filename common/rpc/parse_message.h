// Parses messages as they come from the network. gRPC, left to itself, ends a stream with OK at a message
// that it cannot parse, and a call with INTERNAL.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"

namespace outrider {

// INVALID_ARGUMENT for bytes that are no such message: naming the field if it is text that is not UTF-8, else
// with reason MESSAGE_INVALID.
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);

// Shares no memory with `message`.
grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

}  // namespace outrider
