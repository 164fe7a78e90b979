#include "client/cli/listen_address.h"

#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

struct HostPort {
  std::string host;  // without brackets
  std::string port;
};

HostPort Split(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return {address, ""};
  absl::string_view host = absl::string_view(address).substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  return {std::string(host), address.substr(colon + 1)};
}

// A socket that listens there, or -1 with errno. Without SO_REUSEPORT, as the services do it.
int Listen(const addrinfo& where) {
  const int fd = socket(where.ai_family, where.ai_socktype | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(fd, where.ai_addr, where.ai_addrlen) == 0 && listen(fd, 1) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

// Listens on the first address that the name stands for and that can be had; adds the socket. Empty, or what
// is wrong.
std::string TryHostPort(const std::string& address, std::vector<int>& sockets) {
  const HostPort parts = Split(address);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(parts.host.c_str(), parts.port.c_str(), &hints, &found); error != 0) {
    return gai_strerror(error);
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const int fd = Listen(*each);
    if (fd < 0) continue;
    sockets.push_back(fd);
    return "";
  }
  return strerror(errno);
}

std::string TryUnixPath(const std::string& path) {
  if (path.size() > kMaxSocketPath) return absl::StrCat("the path is longer than ", kMaxSocketPath, " bytes");
  std::error_code ignored;
  const fs::path parent = fs::absolute(path).parent_path();
  return fs::is_directory(parent, ignored) ? "" : absl::StrCat("no folder ", parent.string());
}

}  // namespace

bool IsUnixPath(const std::string& address) {
  return absl::StartsWith(address, kUnixPrefix) && address.size() > strlen(kUnixPrefix);
}

bool IsHostPort(const std::string& address) {
  const HostPort parts = Split(address);
  const bool bracketed = absl::StartsWith(address, "[") && absl::StrContains(address, "]:");
  uint32_t port = 0;
  return !parts.host.empty() && (bracketed || !absl::StrContains(parts.host, ':')) &&
         absl::SimpleAtoi(parts.port, &port) && port <= UINT16_MAX;
}

absl::Status CheckListenFlags(const std::vector<ListenFlag>& flags) {
  std::vector<int> sockets;
  const absl::Cleanup close_all = [&sockets] {
    for (int fd : sockets) close(fd);
  };
  for (const auto& [flag, address] : flags) {
    if (address.empty()) continue;
    const std::string problem = IsUnixPath(address) ? TryUnixPath(address.substr(strlen(kUnixPrefix)))
                                                    : TryHostPort(address, sockets);
    if (!problem.empty()) {
      return absl::UnavailableError(absl::StrCat(flag, ": cannot listen on ", address, ": ", problem));
    }
  }
  return absl::OkStatus();
}

std::string ToCall(const std::string& address) {
  if (IsUnixPath(address)) return address;
  const HostPort parts = Split(address);
  if (parts.host == "0.0.0.0") return absl::StrCat("127.0.0.1:", parts.port);
  if (parts.host == "::") return absl::StrCat("[::1]:", parts.port);
  return address;
}

}  // namespace outrider
