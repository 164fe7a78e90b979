// Signals as events that one thread waits for, instead of handlers that interrupt.
#pragma once

#include "absl/time/time.h"

namespace outrider {

// SIGINT, SIGTERM, SIGHUP and SIGCHLD come out of Wait from now on; SIGPIPE is ignored, writing fails
// instead. Create one, before any other thread exists. Wait belongs to one thread, Wake to all.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // The next signal, or 0 once the time is over or somebody has called Wake.
  int Wait(absl::Duration timeout = absl::InfiniteDuration());
  void Wake();

  // One of those that ask us to end.
  static bool IsStop(int signal);

 private:
  int signal_fd_;
  int wake_fd_;
};

}  // namespace outrider
