// Which URL is for what.
#pragma once

#include <string>

namespace outrider {

struct Route {
  enum class Kind { kUnknown, kHealth, kModels, kModel, kCompletions, kChat };

  Kind kind = Kind::kUnknown;
  std::string model = {};  // of kModel

  bool Posts() const { return kind == Kind::kCompletions || kind == Kind::kChat; }
  bool Takes(const std::string& method) const {
    return Posts() ? method == "POST" : method == "GET" || method == "HEAD";
  }
  const char* methods() const { return Posts() ? "POST, OPTIONS" : "GET, HEAD, OPTIONS"; }
};

// `path` is a URL's, without host and query.
Route RouteOf(const std::string& path);

}  // namespace outrider
