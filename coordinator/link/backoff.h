// Pauses between attempts: each longer than the last, and never the same for all who wait.
#pragma once

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rpc/error.h"
#include "common/rpc/fresh_bits.h"
#include "coordinator/link/event.h"

namespace outrider {

// How long a server that refused asks to be left alone: its RetryInfo, as far as that makes sense.
inline Clock::duration RetryAfter(const absl::Status& status) {
  return absl::ToChronoNanoseconds(std::clamp(RetryDelay(status), absl::ZeroDuration(), absl::Minutes(1)));
}

// One thread.
class Backoff {
 public:
  // The pauses begin at `first` and double up to `most`.
  Backoff(Clock::duration first, Clock::duration most) : first_(first), most_(most), next_(first) {}

  // The next pause, within 50 % of its nominal length, which is no shorter than `at_least`. The jitter comes
  // from the system: a request's random numbers decide tokens and nothing else.
  Clock::duration Next(Clock::duration at_least = {}) {
    const Clock::duration pause = std::max(next_, at_least);
    next_ = std::min(2 * pause, most_);
    const double jitter = 0.5 + std::ldexp(static_cast<double>(FreshBits()), -64);
    return std::chrono::duration_cast<Clock::duration>(pause * jitter);
  }

  // An attempt has succeeded.
  void Reset() { next_ = first_; }

 private:
  const Clock::duration first_;
  const Clock::duration most_;
  Clock::duration next_;
};

}  // namespace outrider
