// An address that stands for several servers: a name of DNS, and what it resolves to.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace outrider {

struct DnsName {
  std::string server;  // of DNS, HOST or HOST:PORT; empty: those of this host
  std::string host;
  std::string port;
};

// `dns:///HOST:PORT` or `dns://SERVER/HOST:PORT`, as gRPC writes them. Nothing for any other address;
// INVALID_ARGUMENT for one that begins so and goes on otherwise.
absl::StatusOr<std::optional<DnsName>> ParseDnsName(absl::string_view address);

// The addresses of a name, IPv4 and IPv6, as HOST:PORT, sorted; at least one. UNAVAILABLE if nobody answers,
// or if there is no such name. Blocks for up to some seconds. Any thread.
absl::StatusOr<std::vector<std::string>> Resolve(const DnsName& name);

}  // namespace outrider
