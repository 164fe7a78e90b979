// Counts frequent events for a log, which reports them once a minute.
#pragma once

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace outrider {

// Thread-safe.
class RateLimitedCount {
 public:
  // Counts one event. Returns the number of events since the last report if a report is due, at most once a
  // minute; else 0.
  int Count() {
    absl::MutexLock lock(&mutex_);
    ++count_;
    const absl::Time now = absl::Now();
    if (now < quiet_until_) return 0;
    quiet_until_ = now + absl::Minutes(1);
    return std::exchange(count_, 0);
  }

 private:
  absl::Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time quiet_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace outrider
