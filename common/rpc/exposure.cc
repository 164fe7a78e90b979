#include "common/rpc/exposure.h"

#include <arpa/inet.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace outrider {

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

absl::Status CheckExposure(absl::string_view flag, absl::string_view listen, bool encrypts, bool insecure) {
  if (encrypts || insecure || IsLocalAddress(listen)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": ", listen, " can be reached from other hosts, and nothing is encrypted; give ",
                   "--tls-cert and --tls-key, or --insecure to serve whoever reaches it"));
}

}  // namespace outrider
