// Separate from the other functions of metrics_page.h, since these headers take long to compile.

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/metrics_page.h"
#include "common/net/asio.h"
#include "common/rpc/address.h"

namespace outrider {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;

constexpr std::chrono::seconds kTimeout{1};  // for the connection, and for the answer

// Throws boost::system::system_error.
asio::awaitable<http::response<http::string_body>> Get(std::string address, std::string path) {
  const HostPort end = ParseHostPort(address).value_or(HostPort{address, 80});
  const std::string port = absl::StrCat(end.port);
  beast::tcp_stream stream(co_await asio::this_coro::executor);
  tcp::resolver resolver(stream.get_executor());
  const auto ends = co_await resolver.async_resolve(end.host, port, asio::use_awaitable);
  stream.expires_after(kTimeout);
  co_await stream.async_connect(ends, asio::use_awaitable);
  http::request<http::empty_body> request(http::verb::get, path, 11);
  request.set(http::field::host, address);
  request.keep_alive(false);
  stream.expires_after(kTimeout);
  co_await http::async_write(stream, request, asio::use_awaitable);
  beast::flat_buffer buffer;
  http::response<http::string_body> response;
  co_await http::async_read(stream, buffer, response, asio::use_awaitable);
  co_return response;
}

}  // namespace

absl::StatusOr<MetricsPage> FetchMetrics(const std::string& address) {
  std::string error;
  try {
    asio::io_context io(1);
    auto answer = asio::co_spawn(io, Get(address, "/metrics"), asio::use_future);
    io.run();
    const http::response<http::string_body> response = answer.get();
    if (response.result() == http::status::ok) return MetricsPage::Parse(response.body());
    error = absl::StrCat("status ", response.result_int());
  } catch (const boost::system::system_error& failure) {
    error = failure.code().message();
  }
  return absl::UnavailableError(absl::StrCat("no metrics at http://", address, "/metrics: ", error));
}

}  // namespace outrider
