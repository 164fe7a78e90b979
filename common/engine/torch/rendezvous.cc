#include "common/engine/torch/rendezvous.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/udp.hpp>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace outrider::libtorch {
namespace {

namespace asio = boost::asio;

// The first address of the host, of TCP or UDP.
template <class Protocol>
typename Protocol::endpoint Resolve(asio::io_context& context, const Rendezvous& rendezvous) {
  typename Protocol::resolver resolver(context);
  return *resolver.resolve(rendezvous.host, std::to_string(rendezvous.port)).begin();
}

}  // namespace

absl::StatusOr<Rendezvous> ParseRendezvous(const std::string& text) {
  const size_t colon = text.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 || !absl::SimpleAtoi(text.substr(colon + 1), &port) ||
      port < 1 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rendezvous ", text, ": must be HOST:PORT with a port from 1 to 65535"));
  }
  absl::string_view host = absl::string_view(text).substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");  // IPv6
  return Rendezvous{std::string(host), static_cast<uint16_t>(port)};
}

int ListenAt(const Rendezvous& rendezvous) {
  using asio::ip::tcp;
  asio::io_context context;
  tcp::acceptor acceptor(context, Resolve<tcp>(context, rendezvous), /*reuse_addr=*/true);
  return acceptor.release();
}

std::string OwnAddressTowards(const Rendezvous& rendezvous) {
  using asio::ip::udp;
  asio::io_context context;
  udp::socket socket(context);
  socket.connect(Resolve<udp>(context, rendezvous));
  return socket.local_endpoint().address().to_string();
}

}  // namespace outrider::libtorch
