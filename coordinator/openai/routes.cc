#include "coordinator/openai/routes.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/strip.h"
#include "common/obs/log.h"

namespace outrider {
namespace {

// %2F and the like are characters of the name.
std::string Decoded(absl::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && absl::ascii_isxdigit(text[i + 1]) &&
        absl::ascii_isxdigit(text[i + 2])) {
      decoded += absl::HexStringToBytes(text.substr(i + 1, 2));
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

}  // namespace

Route RouteOf(const std::string& url) {
  // A slash at the end is a common mistake, and means nothing else.
  const std::string path(absl::StripSuffix(url, "/"));
  if (url == "*") return {Route::Kind::kServer};
  if (path == "/health") return {Route::Kind::kHealth};
  if (path == "/v1/models") return {Route::Kind::kModels};
  if (path == "/v1/completions") return {Route::Kind::kCompletions};
  if (path == "/v1/chat/completions") return {Route::Kind::kChat};
  absl::string_view model = path;
  if (absl::ConsumePrefix(&model, "/v1/models/") && !model.empty()) {
    return {Route::Kind::kModel, Decoded(model)};
  }
  return {};
}

RefusalLog::~RefusalLog() {
  for (auto& [status, of] : statuses_) {
    if (of.unreported > 0) Report(status, of);
  }
}

void RefusalLog::Add(int status) {
  if (count_) count_(status);
  Status& of = statuses_[status];
  ++of.unreported;
  if (const Clock::time_point now = Clock::now(); now >= of.quiet_until) {
    of.quiet_until = now + kQuiet;
    Report(status, of);
  }
}

void RefusalLog::Report(int status, Status& of) {
  LogInfo("http requests refused", {{"status", status}, {"requests", std::exchange(of.unreported, 0)}});
}

}  // namespace outrider
