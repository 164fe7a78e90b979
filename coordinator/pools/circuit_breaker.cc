#include "coordinator/pools/circuit_breaker.h"

#include "common/obs/log.h"

namespace outrider {

CircuitBreaker::Permit::~Permit() {
  if (epoch_ == breaker_->epoch_) breaker_->trying_ = false;
}

void CircuitBreaker::Permit::Succeed() {
  if (epoch_ != breaker_->epoch_) return;
  if (!breaker_->open_) {
    breaker_->failures_ = 0;
    return;
  }
  LogInfo("draft asked again");
  breaker_->Close();
}

void CircuitBreaker::Permit::Fail(Clock::time_point now) {
  if (epoch_ != breaker_->epoch_) return;
  if (!breaker_->open_) {
    if (++breaker_->failures_ < kFailures) return;
    LogWarning("draft left alone", {{"failures", breaker_->failures_}});
  }
  breaker_->Open(now);
}

std::unique_ptr<CircuitBreaker::Permit> CircuitBreaker::TryPass(Clock::time_point now) {
  if (!LetsPass(now)) return nullptr;
  trying_ = open_;
  return std::unique_ptr<Permit>(new Permit(this, epoch_));
}

void CircuitBreaker::OnConnection(uint64_t number) {
  if (number == connection_) return;
  connection_ = number;
  Close();
}

void CircuitBreaker::Open(Clock::time_point now) {
  ++epoch_;
  open_ = true;
  trying_ = false;
  open_until_ = now + pause_.Next();
}

void CircuitBreaker::Close() {
  ++epoch_;
  open_ = false;
  trying_ = false;
  failures_ = 0;
  pause_.Reset();
}

}  // namespace outrider
