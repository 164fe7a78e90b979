#include "common/serve/stall_watch.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/obs/log.h"
#include "common/rpc/address.h"

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

bool AcceptsConnections(const std::string& bound) {
  const std::optional<HostPort> parts = ParseHostPort(bound);
  if (!parts) return false;
  // Without a host, getaddrinfo returns loopback, where a server on all addresses listens too.
  const bool everywhere = parts->host == "0.0.0.0" || parts->host == "::" || parts->host == "*";
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(everywhere ? nullptr : parts->host.c_str(), absl::StrCat(parts->port).c_str(), &hints,
                  &found) != 0) {
    return false;
  }
  const absl::Cleanup free = [found] { freeaddrinfo(found); };
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    if (IsAnswered(*address)) return true;
  }
  return false;
}

StallWatch::StallWatch(std::string thread, absl::Duration timeout, std::function<bool()> is_stuck,
                       std::function<void(bool stalled)> on_change)
    : name_(std::move(thread)),
      timeout_(timeout),
      is_stuck_(std::move(is_stuck)),
      on_change_(std::move(on_change)) {
  if (timeout_ > absl::ZeroDuration()) thread_ = std::thread([this] { Run(); });
}

void StallWatch::Run() {
  int stuck = 0;  // checks in a row
  while (!stopped_.WaitForNotificationWithTimeout(timeout_ / kChecks)) {
    const bool was_stalled = stuck >= kChecks;
    stuck = is_stuck_() ? stuck + 1 : 0;
    const bool stalled = stuck >= kChecks;
    if (stalled == was_stalled) continue;
    if (stalled) {
      LogError("stalled", {{"thread", name_}, {"seconds", absl::ToDoubleSeconds(timeout_)}});
    } else {
      LogInfo("goes on after a stall", {{"thread", name_}});
    }
    on_change_(stalled);
  }
}

}  // namespace outrider
