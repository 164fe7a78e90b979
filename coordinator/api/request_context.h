// The id, trace context and client of a request, read from its call's metadata.
#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// The metadata key of the request's id, which a client may set and the answer always has.
inline constexpr char kRequestIdKey[] = "x-request-id";
inline constexpr char kTraceparentKey[] = "traceparent";

// Reads x-request-id, or draws a random id if it is missing or not 1 to 128 visible ASCII characters. Reads a
// W3C traceparent, too, if it is well formed (https://www.w3.org/TR/trace-context/).
v1::RequestContext ReadRequestContext(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata);

// The metadata key by which the gateway names the client. Believed only in calls from within the process.
inline constexpr char kClientKey[] = "x-outrider-client";
// Values of kClientKey for a client known by its bearer token, its certificate's name, or only its address.
std::string ClientWithToken(absl::string_view authorization);
std::string ClientWithCertificate(const std::string& name);
std::string ClientAtHost(absl::string_view host);
// ClientAtHost for gRPC's peer string, such as "ipv4:127.0.0.1:4711": all ports of a host are one client.
std::string ClientAtPeer(absl::string_view peer);

// Identifies the client: by a hash of the bearer token, where `checks_tokens`; else by the name in its
// certificate; else by its host. Not for display.
std::string ReadClient(const grpc::CallbackServerContext& context, bool checks_tokens);

// The salt that keeps a client's cached prefixes apart from others'. Nobody can compute it without `key`.
uint64_t CacheSalt(const std::string& client, const std::string& key);

}  // namespace outrider
