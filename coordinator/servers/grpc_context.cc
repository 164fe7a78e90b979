#include "coordinator/servers/grpc_context.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace outrider {
namespace {

absl::Time ToAbslTime(Clock::time_point time) {
  if (time == Clock::time_point::max()) return absl::InfiniteFuture();
  return absl::Now() + absl::FromChrono(time - Clock::now());
}

}  // namespace

bool GrpcContext::RunSome(Clock::time_point deadline) {
  thread_ = std::this_thread::get_id();
  for (bool waited = false;; waited = true) {
    timers_.Expire(Clock::now());
    if (ready_.poll() > 0) return true;
    if (waited && Clock::now() >= deadline) return false;
    poller_.Poll(ToAbslTime(std::min(deadline, timers_.next())));
  }
}

void GrpcContext::Run() {
  while (true) RunSome(Clock::time_point::max());
}

}  // namespace outrider
