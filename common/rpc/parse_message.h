// Parses messages as they come from the network. gRPC, left to itself, ends a stream with OK at a message
// that it cannot parse, and a call with INTERNAL.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <limits>

#include "absl/status/status.h"

namespace outrider {

// CANCELLED for no bytes: the client went before it had sent them. INVALID_ARGUMENT for bytes that are not
// such a message: naming the field if it is text that is not UTF-8, else with reason MESSAGE_INVALID. The
// same for a message with `most` or more texts, messages and unknown fields in it, each of which takes dozens
// of bytes of memory, however few on the wire.
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message,
                          size_t most = std::numeric_limits<size_t>::max());

// Shares no memory with `message`.
grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

}  // namespace outrider
