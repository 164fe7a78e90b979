// Which web pages may send requests from a browser, and read the answers.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/net/http_parser.h"
#include "common/net/http_server.h"
#include "common/rpc/address.h"
#include "coordinator/api/request_context.h"
#include "coordinator/openai/routes.h"

namespace outrider {

// `allowed` is GatewayOptions.allowed_origins.
inline bool IsAllowedOrigin(const std::vector<std::string>& allowed, absl::string_view origin) {
  const auto is_it = [&](const std::string& each) { return each == "*" || each == origin; };
  return !origin.empty() && std::ranges::any_of(allowed, is_it);
}

// Whether the request comes from a web page of another host, or calls this host by a public name.
inline bool IsForeign(const std::vector<std::string>& allowed, const HttpRequest& head) {
  absl::string_view origin = head.Header("Origin");
  if (IsAllowedOrigin(allowed, origin)) origin = {};
  const size_t scheme = origin.find("://");
  origin = scheme == absl::string_view::npos ? absl::string_view() : origin.substr(scheme + 3);
  return IsPublicName(head.Header("Host")) || IsPublicName(origin);
}

// Lets the page that sent the request read the response, if any (the Fetch standard's CORS protocol).
inline std::optional<HttpResponse> WithCorsHeaders(const std::vector<std::string>& allowed,
                                                   const HttpRequest& head,
                                                   std::optional<HttpResponse> response) {
  const absl::string_view origin = head.Header("Origin");
  if (!response || !IsAllowedOrigin(allowed, origin)) return response;
  auto& headers = response->headers;
  headers.emplace_back("Access-Control-Allow-Origin", std::string(origin));
  headers.emplace_back("Access-Control-Expose-Headers", kRequestIdKey);
  headers.emplace_back("Vary", "Origin");
  if (head.method != "OPTIONS") return response;
  headers.emplace_back("Access-Control-Allow-Methods", RouteOf(head.path).methods());
  const absl::string_view wanted = head.Header("Access-Control-Request-Headers");
  if (!wanted.empty()) headers.emplace_back("Access-Control-Allow-Headers", std::string(wanted));
  headers.emplace_back("Access-Control-Max-Age", "600");
  return response;
}

}  // namespace outrider
