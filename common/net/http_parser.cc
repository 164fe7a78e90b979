#include "common/net/http_parser.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <limits>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace outrider {
namespace {

namespace http = boost::beast::http;

// Boost's type changes from version to version.
std::string ToString(const boost::beast::string_view& view) { return std::string(view.data(), view.size()); }

}  // namespace

struct HttpParser::Parser {
  http::request_parser<http::string_body> of_beast;
};

HttpParser::HttpParser(const HttpLimits& limits) : limits_(limits), parser_(std::make_unique<Parser>()) {
  auto& parser = parser_->of_beast;
  parser.eager(false);
  parser.header_limit(static_cast<uint32_t>(limits.max_head_bytes));
  // There is no limit until AllowBody, whose error is clearer.
  parser.body_limit(std::numeric_limits<uint64_t>::max());
}

HttpParser::~HttpParser() = default;

bool HttpParser::head_done() const { return parser_->of_beast.is_header_done(); }
bool HttpParser::done() const { return parser_->of_beast.is_done(); }
bool HttpParser::keep_alive() const { return parser_->of_beast.get().keep_alive(); }
bool HttpParser::is_http11() const { return parser_->of_beast.get().version() >= 11; }

size_t HttpParser::Put(absl::string_view bytes) {
  boost::system::error_code error;
  const size_t taken = parser_->of_beast.put(boost::asio::buffer(bytes.data(), bytes.size()), error);
  if (!error) return taken;
  if (error == http::error::need_more) {
    // A line that has not ended: in the head, before a chunk, or after the last chunk.
    if (bytes.size() - taken < limits_.max_head_bytes) return taken;
    error = http::error::header_limit;
  }
  if (error == http::error::header_limit) {
    problem_ = {431, absl::StrCat("headers have at most ", limits_.max_head_bytes, " bytes")};
  } else if (error == http::error::body_limit) {
    problem_ = {413, absl::StrCat("a body has at most ", limits_.max_body_bytes, " bytes")};
  } else if (error == http::error::bad_version) {
    problem_ = {505, "HTTP/1.1 and HTTP/1.0 are spoken here"};
  } else {
    problem_ = {400, absl::StrCat("this is not HTTP: ", error.message())};
  }
  return taken;
}

std::optional<HttpProblem> HttpParser::FindAmbiguity() const {
  const auto& head = parser_->of_beast.get();
  const size_t hosts = head.count(http::field::host);
  if (hosts > 1 || (hosts == 0 && head.version() >= 11)) {
    return HttpProblem{400, absl::StrCat("a request has one Host header, and this has ", hosts)};
  }
  // The characters of a host and a port (RFC 9110, 7.2).
  const auto may_be_in_host = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("-._~%!$&'()*+,;=:[]", c);
  };
  const std::string host = ToString(head[http::field::host]);
  if (!std::all_of(host.begin(), host.end(), may_be_in_host)) {
    return HttpProblem{400, "the Host header is not a host with or without a port"};
  }
  if (head.count(http::field::authorization) > 1) {
    return HttpProblem{400, "a request has at most one Authorization header"};
  }
  if (head.find(http::field::transfer_encoding) == head.end()) return std::nullopt;
  if (head.version() < 11) return HttpProblem{400, "HTTP/1.0 has no Transfer-Encoding"};
  if (!absl::EqualsIgnoreCase(ToString(head[http::field::transfer_encoding]), "chunked")) {
    return HttpProblem{501, "a body can be sent in chunks, and in no other encoding"};
  }
  return std::nullopt;
}

HttpRequest HttpParser::TakeHead() {
  problem_ = FindAmbiguity();
  const auto& head = parser_->of_beast.get();
  std::string target = ToString(head.target());
  HttpRequest request{
      .method = ToString(head.method_string()), .path = "", .headers = {}, .body = "", .client = nullptr};
  for (const absl::string_view scheme : {"http://", "https://"}) {
    if (!absl::StartsWithIgnoreCase(target, scheme)) continue;
    // The host of a target in absolute form replaces the header (RFC 9112, 3.2.2).
    const size_t end = std::min(target.find_first_of("/?", scheme.size()), target.size());
    request.headers.emplace_back("Host", target.substr(scheme.size(), end - scheme.size()));
    target.erase(0, end);
    if (!absl::StartsWith(target, "/")) target.insert(0, "/");
    break;
  }
  request.path = target.substr(0, target.find('?'));
  for (const auto& field : head) {
    request.headers.emplace_back(ToString(field.name_string()), ToString(field.value()));
  }
  return request;
}

void HttpParser::AllowBody() {
  auto& parser = parser_->of_beast;
  const auto& head = parser.get();
  parser.eager(true);
  parser.body_limit(limits_.max_body_bytes);
  if (parser.content_length() && *parser.content_length() > limits_.max_body_bytes) {
    problem_ = {413, absl::StrCat("a body has at most ", limits_.max_body_bytes, " bytes")};
  } else if (const std::string encoding = ToString(head[http::field::content_encoding]);
             !encoding.empty() && !absl::EqualsIgnoreCase(encoding, "identity")) {
    problem_ = {415, absl::StrCat("a body is sent without Content-Encoding, and not as ", encoding)};
  } else if (is_http11() && head.find(http::field::expect) != head.end() && !expects_continue()) {
    problem_ = {417, "nothing but 100-continue can be expected"};
  }
}

bool HttpParser::expects_continue() const {
  return is_http11() &&
         absl::EqualsIgnoreCase(ToString(parser_->of_beast.get()[http::field::expect]), "100-continue");
}

std::string HttpParser::TakeBody() { return std::move(parser_->of_beast.get().body()); }

std::string HttpHead(const HttpResponse& response, std::optional<size_t> length, bool chunks,
                     absl::string_view connection) {
  http::response<http::empty_body> head;
  head.result(static_cast<unsigned>(response.status));
  head.set(http::field::date,
           absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", absl::Now(), absl::UTCTimeZone()));
  if (!connection.empty()) head.set(http::field::connection, std::string(connection));
  for (const auto& [key, value] : response.headers) head.set(key, value);
  if (length && head.result() != http::status::no_content) {
    head.content_length(*length);
  } else if (chunks) {
    head.chunked(true);
  }
  std::ostringstream text;
  text << head.base();
  return std::move(text).str();
}

}  // namespace outrider
