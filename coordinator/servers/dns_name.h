// A DNS name that stands for several servers, and the addresses that it resolves to.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace outrider {

struct DnsName {
  std::string server;  // DNS server, HOST or HOST:PORT; empty: those of this host
  std::string host;
  std::string port;
};

// Parses `dns:///HOST:PORT` or `dns://SERVER/HOST:PORT`, as gRPC writes them. Returns nullopt for any other
// address, and INVALID_ARGUMENT for one that begins with dns:// but is malformed.
absl::StatusOr<std::optional<DnsName>> ParseDnsName(absl::string_view address);

// Returns the addresses of a name, IPv4 and IPv6, as HOST:PORT, sorted; at least one. UNAVAILABLE if no name
// server answers or there is no such name. Blocks for up to a few seconds. Any thread.
absl::StatusOr<std::vector<std::string>> Resolve(const DnsName& name);

}  // namespace outrider
