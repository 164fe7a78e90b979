#include "common/rpc/listener.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/rpc/address.h"
#include "common/rpc/error.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

constexpr int kBacklog = 512;
constexpr rlim_t kMostConnections = 4096;
// The pause after a failure to accept.
constexpr int kPauseMs = 100;
// The time after which unacknowledged bytes end a connection: gRPC's timeout for the answer to a ping.
constexpr int kUserTimeoutMs = 10'000;

// Returns a listening socket, or -1 with errno set.
int Listen(const sockaddr* address, socklen_t length) {
  const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const auto set = [fd](int level, int name, int value) {
    setsockopt(fd, level, name, &value, sizeof(value));
  };
  if (address->sa_family != AF_UNIX) {
    // Not SO_REUSEPORT: with it, two servers would share the connections at random.
    set(SOL_SOCKET, SO_REUSEADDR, 1);
    // Connections inherit these options from their listener.
    set(IPPROTO_TCP, TCP_NODELAY, 1);
    set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
  }
  if (address->sa_family == AF_INET6) set(IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(fd, address, length) == 0 && listen(fd, kBacklog) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

uint16_t PortOf(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length);
  // Both families have the port at the same place.
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

ino_t InodeOf(int fd) {
  struct stat found {};
  return fstat(fd, &found) == 0 ? found.st_ino : 0;
}

absl::Status CannotListen(const std::string& address, const char* reason) {
  return MakeError(absl::StatusCode::kUnavailable, "ADDRESS_UNAVAILABLE",
                   absl::StrCat("cannot listen on ", address, ": ", reason));
}

}  // namespace

int MaxConnections() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int>(std::min(limit.rlim_cur / 4, kMostConnections));
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Bind(const std::string& address) {
  std::unique_ptr<Listener> listener(new Listener(address));
  absl::string_view path = address;
  if (absl::ConsumePrefix(&path, kUnixPrefix)) {
    OUTRIDER_TRY(listener->BindPath(std::string(path)));
  } else {
    const std::optional<HostPort> parts = ParseHostPort(address);
    if (!parts) return CheckListenAddress(address);
    OUTRIDER_TRY(listener->BindPort(parts->host, parts->port));
    listener->address_ =
        absl::StrCat(address.substr(0, address.rfind(':')), ":", PortOf(listener->sockets_.front()));
  }
  return listener;
}

absl::Status Listener::BindPath(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return CannotListen(address_, "the path is too long");
  std::copy(path.begin(), path.end(), address.sun_path);
  struct stat found {};
  if (stat(path.c_str(), &found) == 0 && S_ISSOCK(found.st_mode)) unlink(path.c_str());
  const int fd = Listen(reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  if (fd < 0) return CannotListen(address_, std::strerror(errno));
  sockets_.push_back(fd);
  path_ = path;
  return absl::OkStatus();
}

absl::Status Listener::BindPort(const std::string& host, uint16_t port) {
  const bool all = host == "0.0.0.0" || host == "*";
  absl::Status status = BindHost(all ? "::" : host, port);
  // The host has no IPv6.
  if (!status.ok() && all) status = BindHost("0.0.0.0", port);
  return status;
}

absl::Status Listener::BindHost(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &list); error != 0) {
    return CannotListen(address_, gai_strerror(error));
  }
  const absl::Cleanup free = [list] { freeaddrinfo(list); };
  int error = 0;
  for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
    reinterpret_cast<sockaddr_in*>(each->ai_addr)->sin_port = htons(port);
    const int fd = Listen(each->ai_addr, each->ai_addrlen);
    if (fd < 0) {
      error = errno;
      continue;
    }
    sockets_.push_back(fd);
    port = PortOf(fd);
  }
  return sockets_.empty() ? CannotListen(address_, std::strerror(error)) : absl::OkStatus();
}

void Listener::Start(int most, OnConnection on_connection, OnTurnedAway on_turned_away) {
  most_ = most;
  on_connection_ = std::move(on_connection);
  on_turned_away_ = std::move(on_turned_away);
  stop_ = eventfd(0, EFD_CLOEXEC);
  thread_ = std::thread([this] { Run(); });
}

void Listener::Stop() {
  if (thread_.joinable()) {
    eventfd_write(stop_, 1);
    thread_.join();
    close(stop_);
  }
  for (const int socket : std::exchange(sockets_, {})) close(socket);
  if (!path_.empty()) unlink(std::exchange(path_, "").c_str());
}

void Listener::Run() {
  std::vector<pollfd> waits = {{.fd = stop_, .events = POLLIN, .revents = 0}};
  for (const int socket : sockets_) waits.push_back({.fd = socket, .events = POLLIN, .revents = 0});
  while (true) {
    poll(waits.data(), waits.size(), -1);
    if (waits.front().revents != 0) return;
    for (size_t i = 1; i < waits.size(); ++i) {
      if (waits[i].revents != 0) Accept(waits[i].fd);
    }
  }
}

void Listener::Accept(int socket) {
  const int connection = accept4(socket, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (connection < 0) {
    const bool lacks = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    pollfd stops{.fd = stop_, .events = POLLIN, .revents = 0};
    if (lacks) poll(&stops, 1, kPauseMs);
    return;
  }
  if (!HasRoom()) {
    close(connection);
    if (const int count = turned_away_.Count(); count > 0 && on_turned_away_) on_turned_away_(count);
    return;
  }
  open_[connection] = InodeOf(connection);
  on_connection_(socket, connection);
}

bool Listener::HasRoom() {
  if (open_.size() < static_cast<size_t>(most_)) return true;
  absl::erase_if(open_, [](const auto& each) { return InodeOf(each.first) != each.second; });
  return open_.size() < static_cast<size_t>(most_);
}

}  // namespace outrider
