// Who asked, as the call's metadata say.
#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// The metadata key that a client may name its request by, and that the answer names it by.
inline constexpr char kRequestIdKey[] = "x-request-id";
inline constexpr char kTraceparentKey[] = "traceparent";

// x-request-id, or a random one if there is none or it is not 1 to 128 visible ASCII characters; and a W3C
// traceparent if it is well formed (https://www.w3.org/TR/trace-context/).
v1::RequestContext ReadRequestContext(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata);

// The metadata key by which the gateway says who asks. Only calls from within the process are believed.
inline constexpr char kClientKey[] = "x-outrider-client";
// What it says of a client that it knows by its bearer token, by the name in its certificate, or by its
// address only.
std::string ClientWithToken(absl::string_view authorization);
std::string ClientWithCertificate(const std::string& name);
std::string ClientAtHost(const std::string& host);

// Who asks, so that clients can be told apart: the bearer token, as a hash, where `checks_tokens`; else the
// name in the client's certificate; else its host. Not for eyes.
std::string ReadClient(const grpc::CallbackServerContext& context, bool checks_tokens);

// What keeps a client's cached prefixes apart from those of others. Nobody without the key can find a
// client's.
uint64_t CacheSalt(const std::string& client, const std::string& key);

}  // namespace outrider
