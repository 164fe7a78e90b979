// Parses messages from the network. By itself, gRPC ends a stream with OK at a message that it cannot parse,
// and a unary call with INTERNAL.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <limits>

#include "absl/status/status.h"

namespace outrider {

// CANCELLED if there are no bytes: the client went away before it sent them. INVALID_ARGUMENT if the bytes
// are not a message of this type. The error names the field if a text is not UTF-8; else its reason is
// MESSAGE_INVALID. The latter is also the reason for a message with `max_objects` or more texts, messages and
// unknown fields, each of which takes dozens of bytes of memory, however few it takes on the wire.
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message,
                          size_t max_objects = std::numeric_limits<size_t>::max());

// The result shares no memory with `message`.
grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

}  // namespace outrider
