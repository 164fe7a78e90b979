// Parses HTTP/1 requests from bytes, and writes the heads of answers. Only its source includes Boost.Beast,
// which takes long to compile.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/net/http_message.h"

namespace outrider {

// Why a request cannot be read further.
struct HttpProblem {
  int status;  // of the answer
  std::string message;
};

// One request. One thread.
class HttpParser {
 public:
  explicit HttpParser(const HttpLimits& limits);
  ~HttpParser();

  // Takes what it can and returns how many bytes it took; pass the rest again with more bytes behind it.
  // Stops after the head until AllowBody.
  size_t Put(absl::string_view bytes);
  // The error in the bytes, or in the size that they announce; nullopt if there is none.
  const std::optional<HttpProblem>& problem() const { return problem_; }

  bool head_done() const;
  bool done() const;  // the request is complete
  // Returns the request without its body. Call once, after the head. Sets problem() if the host, keys or end
  // of the body are ambiguous, so that a proxy in front cannot read another request from the same bytes (RFC
  // 9112, 3.2, 6.1 and 11.2).
  HttpRequest TakeHead();
  // Checks the body size and the expectation that the head gives.
  void AllowBody();
  // Whether the client waits for a "100 Continue" before it sends the body.
  bool expects_continue() const;
  std::string TakeBody();

  bool keep_alive() const;
  bool is_http11() const;  // else HTTP/1.0, which has neither chunks nor "100 Continue"

 private:
  struct Parser;

  std::optional<HttpProblem> FindUncertainty() const;

  const HttpLimits& limits_;
  const std::unique_ptr<Parser> parser_;
  std::optional<HttpProblem> problem_;
};

// The head of an answer, up to the empty line. Without a length the body is in chunks, or ends with the
// connection. `connection` is the value of that header; if empty, the header is left out, and the connection
// stays.
std::string HttpHead(const HttpResponse& response, std::optional<size_t> length, bool chunks,
                     absl::string_view connection);
std::string HttpChunk(absl::string_view piece);
inline constexpr char kLastHttpChunk[] = "0\r\n\r\n";
inline constexpr char kHttpContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";

}  // namespace outrider
