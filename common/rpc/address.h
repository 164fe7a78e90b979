// The syntax of gRPC servers' addresses. gRPC itself accepts more: it wraps a port of 99999 around, and
// connects to port 443 if none is given.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace outrider {

inline constexpr char kUnixPrefix[] = "unix:";

struct HostPort {
  std::string host;  // without the brackets of an IPv6 address
  uint16_t port = 0;
};
// "HOST:PORT", with an IPv6 address in brackets; nullopt for any other text.
std::optional<HostPort> ParseHostPort(absl::string_view address);
// Whether the address is "unix:PATH".
bool IsUnixPath(absl::string_view address);

// INVALID_ARGUMENT unless a server can listen there: HOST:PORT, where port 0 picks one, or unix:PATH.
absl::Status CheckListenAddress(absl::string_view address);
// INVALID_ARGUMENT unless a client can connect there: HOST:PORT with a port other than 0, or an address with
// a gRPC scheme, such as unix:PATH and dns:///HOST:PORT.
absl::Status CheckServerAddress(absl::string_view address);

// Whether only processes of this host can connect to a listener at this address, HOST:PORT or unix:PATH. A
// name other than "localhost" counts as reachable from elsewhere, whatever it resolves to.
bool IsLocalAddress(absl::string_view listen);

// Whether `host`, from a request's Host or Origin header and with or without a port, is a name of the public
// DNS. An address is not, nor is a name without a dot or one under localhost, local or internal. The owner of
// a public name can point it at a loopback address; pages from that name then reach servers that listen there
// (DNS rebinding).
bool IsPublicName(absl::string_view host);

// INVALID_ARGUMENT, naming `flag`, for a listener that other hosts can reach and that does not encrypt,
// unless `insecure` allows it. Tokens do not help: anyone on the path can read them.
absl::Status CheckExposure(absl::string_view flag, absl::string_view listen, bool encrypts, bool insecure);

}  // namespace outrider
