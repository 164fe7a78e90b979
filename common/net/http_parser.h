// HTTP requests and answers, as the server and its handlers exchange them. Parses HTTP/1 requests from bytes,
// and writes the heads of answers; only its source includes Boost.Beast, which takes long to compile.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "common/net/asio.h"

namespace outrider {

// The client of an open connection. For the connection's thread.
struct HttpClient {
  std::string address;            // numeric, without the port
  std::string certificate;        // the name in its certificate; empty if it showed none
  bool gone = false;              // the client has closed its end, or the connection is lost
  std::function<void()> on_gone;  // called when it goes; may be null
};

struct HttpRequest {
  std::string method;
  std::string path;  // without the query
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  HttpClient* client;

  // The first header of that name, ignoring case; empty if there is none.
  absl::string_view Header(absl::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (absl::EqualsIgnoreCase(key, name)) return value;
    }
    return {};
  }
};

struct HttpResponse {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  // If set, returns the body piece by piece, then nullopt. It is called only once the previous piece is
  // written to the client's socket.
  std::function<asio::awaitable<std::optional<std::string>>()> next_piece;
  std::optional<size_t> length = {};  // total bytes of the pieces, if known
  bool close = false;                 // the connection is not used again
};

// Limits on a client's use of the server. Except for `write`, a time limit covers a whole operation, however
// slowly it progresses.
struct HttpLimits {
  // The time for a TLS handshake, and for a head from its first byte to its last: a round trip or two. Also
  // the time until the first byte of a new connection.
  std::chrono::milliseconds head = std::chrono::seconds(10);
  // The time for the largest body over a slow line.
  std::chrono::milliseconds body = std::chrono::seconds(60);
  // The time that an answer may go without progress, since the client does not read it.
  std::chrono::milliseconds write = std::chrono::seconds(50);
  // The time between requests. Longer than the minute for which load balancers keep connections, so that they
  // close first and never write into a connection that is being closed.
  std::chrono::milliseconds idle = std::chrono::seconds(75);
  // How long the server reads and drops what a client sends after the last answer. Otherwise a client that
  // still writes would lose the answer with the connection.
  std::chrono::milliseconds linger = std::chrono::seconds(5);
  size_t max_head_bytes = 16 << 10;  // all headers together, as in other servers
  size_t max_url_bytes = 8 << 10;
  size_t max_body_bytes = 4 << 20;
  int max_connections = 1024;  // each takes a descriptor and 16 KiB
};

// The reason that a request cannot be read further.
struct HttpProblem {
  int status;  // HTTP status of the answer; 0: no answer
  std::string message;
};

// Parses one request. For one thread.
class HttpParser {
 public:
  explicit HttpParser(const HttpLimits& limits);
  ~HttpParser();

  // Parses as many bytes as it can and returns their number. Pass the remaining bytes again, followed by
  // more. Stops after the head until AllowBody is called.
  size_t Put(absl::string_view bytes);
  // The error in the bytes, or in the size that they announce; nullopt if there is none.
  const std::optional<HttpProblem>& problem() const { return problem_; }

  bool head_done() const;
  bool done() const;  // the request is complete
  // Returns the request without its body. Call once, after the head. Sets problem() if the host, the
  // credentials or the end of the body is ambiguous, so that a proxy in front cannot read another request
  // from the same bytes (RFC 9112, 3.2, 6.1 and 11.2).
  HttpRequest TakeHead();
  // Lets Put go on to the body. Checks the body's size and encoding and the expectation in the head.
  void AllowBody();
  // Whether the client waits for a "100 Continue" before it sends the body.
  bool expects_continue() const;
  std::string TakeBody();

  bool keep_alive() const;
  bool is_http11() const;  // else HTTP/1.0, which has neither chunks nor "100 Continue"

 private:
  struct Parser;

  std::optional<HttpProblem> FindAmbiguity() const;

  const HttpLimits& limits_;
  const std::unique_ptr<Parser> parser_;
  std::optional<HttpProblem> problem_;
};

// The head of an answer, including the empty line at its end. Without a length, the body is sent in chunks or
// ends with the connection. `connection` is the value of the Connection header; if it is empty, the header is
// left out and the connection stays open.
std::string HttpHead(const HttpResponse& response, std::optional<size_t> length, bool chunks,
                     absl::string_view connection);

}  // namespace outrider
