#include "tests/unit/http_client.h"

#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <limits>

#include "absl/strings/str_cat.h"

namespace outrider {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

HttpTestClient::HttpTestClient(const std::string& address, int receive_buffer) {
  const size_t colon = address.rfind(':');
  const tcp::endpoint end(asio::ip::make_address(address.substr(0, colon)),
                          static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  socket_.open(end.protocol());
  if (receive_buffer > 0) socket_.set_option(asio::socket_base::receive_buffer_size(receive_buffer));
  socket_.connect(end);
}

bool HttpTestClient::Send(absl::string_view bytes) {
  error_code error;
  asio::write(socket_, asio::buffer(bytes.data(), bytes.size()), error);
  return !error;
}

HttpAnswer HttpTestClient::Read(bool head_only) {
  http::response_parser<http::string_body> parser;
  parser.body_limit(std::numeric_limits<uint64_t>::max());
  parser.skip(head_only);
  error_code error;
  http::read(socket_, buffer_, parser, error);
  HttpAnswer answer;
  if (error) return answer;
  answer.status = static_cast<int>(parser.get().result_int());
  for (const auto& field : parser.get()) {
    answer.headers[std::string(field.name_string().data(), field.name_string().size())] =
        std::string(field.value().data(), field.value().size());
  }
  answer.body = std::move(parser.get().body());
  return answer;
}

HttpAnswer HttpTestClient::Ask(const std::string& method, const std::string& path, const std::string& headers,
                               const std::string& body) {
  const std::string length = body.empty() ? "" : absl::StrCat("Content-Length: ", body.size(), "\r\n");
  Send(absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: test\r\n", headers, length, "\r\n", body));
  return Read(method == "HEAD");
}

bool HttpTestClient::IsClosed() {
  char byte;
  error_code error;
  return asio::read(socket_, asio::buffer(&byte, 1), error) == 0 && buffer_.size() == 0;
}

}  // namespace outrider
