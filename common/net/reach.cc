#include "common/net/reach.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "absl/cleanup/cleanup.h"

namespace outrider {

namespace {

constexpr int kPatienceMs = 1000;

bool WaitFor(int fd, short event) {
  pollfd waits{.fd = fd, .events = event, .revents = 0};
  return poll(&waits, 1, kPatienceMs) == 1;
}

bool IsAnswered(const addrinfo& address) {
  const int fd = socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const absl::Cleanup close = [fd] { ::close(fd); };
  if (connect(fd, address.ai_addr, address.ai_addrlen) != 0 && errno != EINPROGRESS) return false;
  constexpr char kNothing[] = "QUIT\r\n\r\n";
  return WaitFor(fd, POLLOUT) && send(fd, kNothing, sizeof(kNothing) - 1, MSG_NOSIGNAL) > 0 &&
         WaitFor(fd, POLLIN);
}

}  // namespace

bool TakesConnections(const std::string& bound) {
  const size_t colon = bound.rfind(':');
  std::string host = bound.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  // Without a host getaddrinfo gives loopback, which a server on all addresses listens on too.
  const bool everywhere = host == "0.0.0.0" || host == "::" || host == "*";
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = bound.substr(colon + 1);
  if (getaddrinfo(everywhere ? nullptr : host.c_str(), port.c_str(), &hints, &found) != 0) return false;
  const absl::Cleanup free = [found] { freeaddrinfo(found); };
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    if (IsAnswered(*address)) return true;
  }
  return false;
}

}  // namespace outrider
