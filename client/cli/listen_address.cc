#include "client/cli/local_services.h"

#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/address.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

// Returns a socket that listens there, or -1 with errno. Without SO_REUSEPORT, as in the services.
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

// Listens on the first usable address of the name; adds the socket. Returns empty, or what is wrong.
std::string TryHostPort(const std::string& address, std::vector<int>& sockets) {
  const std::optional<HostPort> parts = ParseHostPort(address);
  if (!parts) return "it is not HOST:PORT";
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(parts->host.c_str(), absl::StrCat(parts->port).c_str(), &hints, &found);
      error != 0) {
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
  const std::optional<HostPort> parts = ParseHostPort(address);
  if (parts && parts->host == "0.0.0.0") return absl::StrCat("127.0.0.1:", parts->port);
  if (parts && parts->host == "::") return absl::StrCat("[::1]:", parts->port);
  return address;
}

}  // namespace outrider
