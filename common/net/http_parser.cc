#include "common/net/http_parser.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <limits>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

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
  // Until AllowBody, which says it better.
  parser.body_limit(std::numeric_limits<uint64_t>::max());
}

HttpParser::~HttpParser() = default;

bool HttpParser::head_done() const { return parser_->of_beast.is_header_done(); }
bool HttpParser::done() const { return parser_->of_beast.is_done(); }
bool HttpParser::keep_alive() const { return parser_->of_beast.get().keep_alive(); }
bool HttpParser::chunks_allowed() const { return parser_->of_beast.get().version() >= 11; }

size_t HttpParser::Put(absl::string_view bytes) {
  boost::system::error_code error;
  const size_t taken = parser_->of_beast.put(boost::asio::buffer(bytes.data(), bytes.size()), error);
  if (!error) return taken;
  if (error == http::error::need_more) {
    // Lines without end: of the head, of chunks, or behind the last one.
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

HttpRequest HttpParser::TakeHead() {
  const auto& head = parser_->of_beast.get();
  const size_t hosts = head.count(http::field::host);
  if (hosts > 1 || (hosts == 0 && head.version() >= 11)) {
    problem_ = {400, absl::StrCat("a request has one Host header, and this has ", hosts)};
  }
  HttpRequest request{.method = ToString(head.method_string()),
                      .path = ToString(head.target()),
                      .headers = {},
                      .body = "",
                      .client = nullptr};
  request.path.erase(std::min(request.path.find('?'), request.path.size()));
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
  } else if (head.find(http::field::transfer_encoding) != head.end() &&
             !absl::EqualsIgnoreCase(ToString(head[http::field::transfer_encoding]), "chunked")) {
    // Whoever stands in front may see the end of the body elsewhere.
    problem_ = {501, "a body can be sent in chunks, and in no other encoding"};
  } else if (head.find(http::field::expect) != head.end() && !expects_continue()) {
    problem_ = {417, "nothing but 100-continue can be expected"};
  }
}

bool HttpParser::expects_continue() const {
  return absl::EqualsIgnoreCase(ToString(parser_->of_beast.get()[http::field::expect]), "100-continue");
}

std::string HttpParser::TakeBody() { return std::move(parser_->of_beast.get().body()); }

std::string HttpHead(const HttpResponse& response, std::optional<size_t> length, bool chunks,
                     absl::string_view connection) {
  http::response<http::empty_body> head;
  head.result(static_cast<unsigned>(response.status));
  if (!connection.empty()) head.set(http::field::connection, std::string(connection));
  for (const auto& [key, value] : response.headers) head.set(key, value);
  if (length) {
    head.content_length(*length);
  } else if (chunks) {
    head.chunked(true);
  }
  std::ostringstream text;
  text << head.base();
  return std::move(text).str();
}

std::string HttpChunk(absl::string_view piece) {
  return absl::StrCat(absl::Hex(piece.size()), "\r\n", piece, "\r\n");
}

}  // namespace outrider
