#include "coordinator/gateway/refusal_log.h"

#include "common/obs/log.h"

namespace outrider {

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
