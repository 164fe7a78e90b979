// Keeps generations from asking a draft that keeps failing.
#pragma once

#include <cstdint>
#include <memory>

#include "coordinator/link/backoff.h"
#include "coordinator/link/event.h"

namespace outrider {

// One for a draft, shared by all generations. Closed, it lets every item pass. After kFailures failures in a
// row it opens: nothing passes for a while. Then one item may try: if it succeeds the breaker closes, if it
// fails the breaker opens again, for longer. Executor thread.
class CircuitBreaker {
 public:
  static constexpr int kFailures = 3;

  // The leave to send one item. What became of the item is reported at most once; without a report it was
  // given up and says nothing of the draft. Must not outlive the breaker.
  class Permit {
   public:
    ~Permit();
    Permit(const Permit&) = delete;
    Permit& operator=(const Permit&) = delete;

    // The draft did what it should.
    void Succeed();
    // It was late, lost, or of no use.
    void Fail(Clock::time_point now);

   private:
    friend class CircuitBreaker;
    Permit(CircuitBreaker* breaker, uint64_t epoch) : breaker_(breaker), epoch_(epoch) {}

    CircuitBreaker* const breaker_;
    const uint64_t epoch_;  // what was sent before the last change of state says nothing of the present one
  };

  // Whether TryPass would give leave.
  bool LetsPass(Clock::time_point now) const { return !open_ || (now >= open_until_ && !trying_); }
  // Null: the draft is to be left alone now.
  std::unique_ptr<Permit> TryPass(Clock::time_point now);

  // Before items are sent over the link's connection of that number. A new one is closed.
  void OnConnection(uint64_t number);

 private:
  void Open(Clock::time_point now);
  void Close();

  Backoff pause_{std::chrono::milliseconds(500), std::chrono::seconds(8)};
  uint64_t connection_ = 0;
  uint64_t epoch_ = 0;
  int failures_ = 0;  // in a row, while closed
  bool open_ = false;
  Clock::time_point open_until_{};
  bool trying_ = false;  // the item that may try is on its way
};

}  // namespace outrider
