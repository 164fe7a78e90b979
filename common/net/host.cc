#include "common/net/host.h"

#include <arpa/inet.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace outrider {

bool IsPublicName(absl::string_view host) {
  if (absl::StartsWith(host, "[")) return false;  // an address of IPv6
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

}  // namespace outrider
