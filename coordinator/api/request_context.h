// Who asked, as the call's metadata say.
#pragma once

#include <grpcpp/grpcpp.h>

#include <map>

#include "outrider/v1/sequence.pb.h"

namespace outrider {

// The metadata key that a client may name its request by, and that the answer names it by.
inline constexpr char kRequestIdKey[] = "x-request-id";
inline constexpr char kTraceparentKey[] = "traceparent";

// x-request-id, or a random one if there is none or it is not 1 to 128 visible ASCII characters; and a W3C
// traceparent if it is well formed (https://www.w3.org/TR/trace-context/).
v1::RequestContext ReadRequestContext(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata);

}  // namespace outrider
