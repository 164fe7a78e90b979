#include "common/rpc/address.h"

#include <arpa/inet.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

constexpr absl::string_view kSchemes[] = {"dns:", "ipv4:", "ipv6:", "unix-abstract:"};

}  // namespace

std::optional<HostPort> ParseHostPort(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos) return std::nullopt;
  absl::string_view host = address.substr(0, colon);
  const bool is_bracketed = absl::StartsWith(host, "[") && absl::EndsWith(host, "]");
  if (is_bracketed) host = host.substr(1, host.size() - 2);
  uint32_t port = 0;
  if (host.empty() || (!is_bracketed && absl::StrContains(host, ":")) ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port > UINT16_MAX) {
    return std::nullopt;
  }
  return HostPort{std::string(host), static_cast<uint16_t>(port)};
}

bool IsUnixPath(absl::string_view address) {
  return absl::StartsWith(address, kUnixPrefix) && address != kUnixPrefix;
}

absl::Status CheckListenAddress(absl::string_view address) {
  if (IsUnixPath(address) || ParseHostPort(address)) return absl::OkStatus();
  return Invalid("'", address, "' is neither HOST:PORT, with a port up to 65535, nor unix:PATH");
}

absl::Status CheckServerAddress(absl::string_view address) {
  for (const absl::string_view scheme : kSchemes) {
    if (absl::StartsWith(address, scheme)) return absl::OkStatus();
  }
  const std::optional<HostPort> host_port = ParseHostPort(address);
  if (IsUnixPath(address) || (host_port && host_port->port != 0)) return absl::OkStatus();
  return Invalid("'", address, "' is neither HOST:PORT, with a port from 1 to 65535, nor unix:PATH");
}

bool IsLocalAddress(absl::string_view listen) {
  if (absl::StartsWith(listen, "unix:") || absl::StartsWith(listen, "unix-abstract:")) return true;
  absl::string_view host = listen.substr(0, listen.rfind(':'));
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  if (host == "localhost") return true;
  const std::string address(host);
  in_addr v4{};
  if (inet_pton(AF_INET, address.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  return inet_pton(AF_INET6, address.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool IsPublicName(absl::string_view host) {
  if (absl::StartsWith(host, "[")) return false;  // an IPv6 address
  host = host.substr(0, host.find(':'));
  absl::ConsumeSuffix(&host, ".");
  in_addr address{};
  if (inet_pton(AF_INET, std::string(host).c_str(), &address) == 1 || !absl::StrContains(host, "."))
    return false;
  for (const absl::string_view end : {".localhost", ".local", ".internal"}) {
    if (absl::EndsWithIgnoreCase(host, end)) return false;
  }
  return true;
}

absl::Status CheckExposure(absl::string_view flag, absl::string_view listen, bool encrypts, bool insecure) {
  if (encrypts || insecure || IsLocalAddress(listen)) return absl::OkStatus();
  return Invalid(flag, ": ", listen, " can be reached from other hosts, and nothing is encrypted; give ",
                 "--tls-cert and --tls-key, or --insecure to serve whoever reaches it");
}

}  // namespace outrider
