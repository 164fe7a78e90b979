// Who asks, according to the call's metadata.
#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// The metadata key under which a client may name its request, and the answer names it.
inline constexpr char kRequestIdKey[] = "x-request-id";
inline constexpr char kTraceparentKey[] = "traceparent";

// x-request-id, or a random one if there is none or it is not 1 to 128 visible ASCII characters; and a W3C
// traceparent if it is well formed (https://www.w3.org/TR/trace-context/).
v1::RequestContext ReadRequestContext(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata);

// The metadata key under which the gateway says who asks. Only calls from within the process are believed.
inline constexpr char kClientKey[] = "x-outrider-client";
// Its values for a client known by its bearer token, by its certificate's name, or by its address only.
std::string ClientWithToken(absl::string_view authorization);
std::string ClientWithCertificate(const std::string& name);
std::string ClientAtHost(absl::string_view host);
// The same for the address that gRPC gives, "ipv4:127.0.0.1:4711": all ports of a host are one client.
std::string ClientAtPeer(absl::string_view peer);

// Identifies the client: by a hash of the bearer token, where `checks_tokens`; else by the name in its
// certificate; else by its host. Not for display.
std::string ReadClient(const grpc::CallbackServerContext& context, bool checks_tokens);

// Keeps a client's cached prefixes apart from those of others. Nobody without the key can find a client's.
uint64_t CacheSalt(const std::string& client, const std::string& key);

}  // namespace outrider
