// Which URL is for what.
#pragma once

#include <string>

namespace outrider {

struct Route {
  // kServer: "*", which stands for all of them in OPTIONS.
  enum class Kind { kUnknown, kServer, kHealth, kModels, kModel, kCompletions, kChat };

  Kind kind = Kind::kUnknown;
  std::string model = {};  // of kModel

  bool Posts() const { return kind == Kind::kCompletions || kind == Kind::kChat; }
  bool Takes(const std::string& method) const {
    if (kind == Kind::kServer) return false;
    return Posts() ? method == "POST" : method == "GET" || method == "HEAD";
  }
  const char* methods() const {
    if (kind == Kind::kServer) return "GET, HEAD, POST, OPTIONS";
    return Posts() ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
  }
};

// `path` is a URL's, without host and query.
Route RouteOf(const std::string& path);

}  // namespace outrider
