#include "common/serve/stall_watch.h"

#include <utility>

#include "common/obs/log.h"

namespace outrider {

StallWatch::StallWatch(std::string thread, absl::Duration timeout, std::function<bool()> is_stuck,
                       std::function<void(bool stalled)> on_change)
    : name_(std::move(thread)),
      timeout_(timeout),
      is_stuck_(std::move(is_stuck)),
      on_change_(std::move(on_change)) {
  if (timeout_ > absl::ZeroDuration()) thread_ = std::thread([this] { Run(); });
}

StallWatch::~StallWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void StallWatch::Run() {
  int stuck = 0;  // checks in a row
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopped_), timeout_ / kChecks)) return;
    }
    const bool was_stalled = stuck >= kChecks;
    stuck = is_stuck_() ? stuck + 1 : 0;
    const bool stalled = stuck >= kChecks;
    if (stalled == was_stalled) continue;
    if (stalled) {
      LogError("stalled", {{"thread", name_}, {"seconds", absl::ToDoubleSeconds(timeout_)}});
    } else {
      LogInfo("goes on after a stall", {{"thread", name_}});
    }
    on_change_(stalled);
  }
}

}  // namespace outrider
