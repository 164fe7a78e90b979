// An HTTP client for tests, which can also misbehave.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace outrider {

struct HttpAnswer {
  int status = 0;  // 0: the server has closed the connection instead
  std::map<std::string, std::string> headers;
  std::string body;
};

// One connection. The constructor throws if it cannot connect.
class HttpTestClient {
 public:
  // `receive_buffer`: its size in bytes; 0: the system's default.
  explicit HttpTestClient(const std::string& address, int receive_buffer = 0);

  // Returns false if the server has closed the connection.
  bool Send(absl::string_view bytes);
  // Reads the next answer. `head_only`: the request was for the head, so the answer has no body.
  HttpAnswer Read(bool head_only = false);
  // Sends a request and reads its answer.
  HttpAnswer Ask(const std::string& method, const std::string& path, const std::string& headers = "",
                 const std::string& body = "");
  // Waits until the server has closed the connection. Returns false if it sends something instead.
  bool IsClosed();
  void Close() { socket_.close(); }

 private:
  boost::asio::io_context io_;
  boost::asio::ip::tcp::socket socket_{io_};
  boost::beast::flat_buffer buffer_;
};

}  // namespace outrider
