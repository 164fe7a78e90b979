#include "coordinator/gateway/client_connection.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdlib>
#include <filesystem>

namespace outrider {
namespace {

// One end of a socket; port 0 if it is not one of the internet's, or not connected.
struct End {
  std::string address;
  int port = 0;
};

End EndOf(int socket, decltype(getpeername)* which) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  auto* const address = reinterpret_cast<sockaddr*>(&storage);
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (which(socket, address, &size) != 0 || (storage.ss_family != AF_INET && storage.ss_family != AF_INET6) ||
      getnameinfo(address, size, host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) !=
          0) {
    return {};
  }
  return {host, std::atoi(port)};
}

}  // namespace

ClientConnection::ClientConnection(const std::string& remote_address, int remote_port, int local_port) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const int socket = std::atoi(entry.path().filename().c_str());
    const End peer = EndOf(socket, getpeername);
    if (peer.port != 0 && peer.port == remote_port && peer.address == remote_address &&
        EndOf(socket, getsockname).port == local_port) {
      socket_ = socket;
      return;
    }
  }
}

bool ClientConnection::gone() const {
  pollfd state{.fd = socket_, .events = POLLRDHUP, .revents = 0};
  return socket_ >= 0 && poll(&state, 1, 0) == 1 && (state.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace outrider
