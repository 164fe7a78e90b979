#include "coordinator/servers/dns_name.h"

#include <ares.h>
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/rpc/address.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

constexpr char kScheme[] = "dns://";
// The timeout of one attempt with one name server, and the number of attempts.
constexpr int kTimeoutMs = 1000;
constexpr int kTries = 2;

absl::Status Failure(const DnsName& name, int code) {
  return absl::UnavailableError(absl::StrCat("cannot resolve ", name.host, ": ", ares_strerror(code)));
}

// One lookup, whose answer c-ares delivers to OnAnswer.
struct Lookup {
  const DnsName& name;
  absl::StatusOr<std::vector<std::string>> addresses = absl::UnknownError("not answered");

  void OnAnswer(int status, const ares_addrinfo* found) {
    if (status != ARES_SUCCESS) {
      addresses = Failure(name, status);
      return;
    }
    std::vector<std::string> list;
    for (const ares_addrinfo_node* node = found->nodes; node != nullptr; node = node->ai_next) {
      std::array<char, INET6_ADDRSTRLEN> text{};
      const bool is_v6 = node->ai_family == AF_INET6;
      const void* const ip =
          is_v6 ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6*>(node->ai_addr)->sin6_addr)
                : static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(node->ai_addr)->sin_addr);
      if (inet_ntop(node->ai_family, ip, text.data(), text.size()) == nullptr) continue;
      list.push_back(is_v6 ? absl::StrCat("[", text.data(), "]:", name.port)
                           : absl::StrCat(text.data(), ":", name.port));
    }
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
    addresses = list.empty() ? Failure(name, ARES_ENODATA)
                             : absl::StatusOr<std::vector<std::string>>(std::move(list));
  }
};

// Runs the channel until all its queries are answered.
void Process(ares_channel channel) {
  while (true) {
    std::array<ares_socket_t, ARES_GETSOCK_MAXNUM> sockets{};
    const auto wanted = static_cast<unsigned>(ares_getsock(channel, sockets.data(), sockets.size()));
    std::vector<pollfd> polled;
    for (size_t i = 0; i < sockets.size(); ++i) {
      const bool reads = ARES_GETSOCK_READABLE(wanted, i);
      const bool writes = ARES_GETSOCK_WRITABLE(wanted, i);
      const int events = (reads ? POLLIN : 0) | (writes ? POLLOUT : 0);
      if (events != 0)
        polled.push_back({.fd = sockets[i], .events = static_cast<int16_t>(events), .revents = 0});
    }
    if (polled.empty()) return;
    timeval most{.tv_sec = kTimeoutMs / 1000, .tv_usec = 0};
    const timeval* const wait = ares_timeout(channel, &most, &most);
    poll(polled.data(), polled.size(), static_cast<int>(wait->tv_sec * 1000 + wait->tv_usec / 1000) + 1);
    // Called even without an event, so that c-ares notices timeouts.
    ares_process_fd(channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
    for (const pollfd& socket : polled) {
      const bool reads = (socket.revents & (POLLIN | POLLERR | POLLHUP)) != 0;
      const bool writes = (socket.revents & POLLOUT) != 0;
      ares_process_fd(channel, reads ? socket.fd : ARES_SOCKET_BAD, writes ? socket.fd : ARES_SOCKET_BAD);
    }
  }
}

}  // namespace

absl::StatusOr<std::optional<DnsName>> ParseDnsName(absl::string_view address) {
  if (!absl::ConsumePrefix(&address, kScheme)) return std::nullopt;
  const size_t slash = address.find('/');
  const auto named =
      slash == absl::string_view::npos ? std::nullopt : ParseHostPort(address.substr(slash + 1));
  if (!named || named->port == 0) {
    return Invalid(kScheme, address, ": not dns:///HOST:PORT or dns://SERVER/HOST:PORT");
  }
  return DnsName{.server = std::string(address.substr(0, slash)),
                 .host = named->host,
                 .port = absl::StrCat(named->port)};
}

absl::StatusOr<std::vector<std::string>> Resolve(const DnsName& name) {
  ares_options options{};
  options.timeout = kTimeoutMs;
  options.tries = kTries;
  ares_channel channel = nullptr;
  if (const int code = ares_init_options(&channel, &options, ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES);
      code != ARES_SUCCESS) {
    return Failure(name, code);
  }
  Lookup lookup{name};  // declared before `owner`, whose destructor may call it
  const std::unique_ptr<ares_channeldata, void (*)(ares_channel)> owner(channel, ares_destroy);
  if (!name.server.empty()) {
    const int code = ares_set_servers_ports_csv(channel, name.server.c_str());
    if (code != ARES_SUCCESS) return Failure(name, code);
  }
  ares_addrinfo_hints hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = ARES_AI_NOSORT;
  ares_getaddrinfo(
      channel, name.host.c_str(), nullptr, &hints,
      [](void* lookup, int status, int /*timeouts*/, ares_addrinfo* found) {
        static_cast<Lookup*>(lookup)->OnAnswer(status, found);
        ares_freeaddrinfo(found);
      },
      &lookup);
  Process(channel);
  return lookup.addresses;
}

}  // namespace outrider
