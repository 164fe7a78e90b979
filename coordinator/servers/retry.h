// How items are sent again: after which pauses, how often, and in which order.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rpc/error.h"
#include "common/rpc/fresh_bits.h"
#include "coordinator/servers/grpc_timer.h"

namespace outrider {

// How long a server that refused asks to be left alone: its RetryInfo, within reason.
inline Clock::duration RetryAfter(const absl::Status& status) {
  return absl::ToChronoNanoseconds(std::clamp(RetryDelay(status), absl::ZeroDuration(), absl::Minutes(1)));
}

// Pauses between attempts. Each is longer than the last, and random, so that waiters do not return together.
// One thread.
class Backoff {
 public:
  // The pauses begin at `first` and double up to `most`.
  Backoff(Clock::duration first, Clock::duration most) : first_(first), most_(most), next_(first) {}

  // Returns the next pause, within 50 % of its nominal length, which is no shorter than `at_least`. The
  // jitter comes from the system: a request's random numbers decide tokens and nothing else.
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

// Counts the losses in a row of the connection under a sequence's items. A server that dies takes all items
// in flight with it, and one of them may be the cause. After a first loss all are sent again at once. Those
// lost twice are suspects, and suspects are sent one at a time (Link::suspects), so that a third loss tells
// the culprit. One thread.
class LossCount {
 public:
  // An item that brings the sequence to `end` tokens was answered. An answer to an earlier part clears
  // nothing: the part that was lost is yet to come.
  void OnAnswer(size_t end) {
    if (end >= end_) *this = {};
  }
  // The connection was lost under such an item.
  void OnLost(size_t end) {
    ++losses_;
    end_ = std::max(end_, end);
  }

  bool suspect() const { return losses_ >= kSuspect; }
  // Whether sending it again would do to other servers what it did before.
  bool guilty() const { return losses_ >= kGuilty; }

 private:
  static constexpr int kSuspect = 2;
  static constexpr int kGuilty = 3;

  int losses_ = 0;
  size_t end_ = 0;  // of the longest item lost
};

// Lets one holder go on at a time, first come, first served. Executor thread. Outlives its turns.
class TurnQueue {
 public:
  // A place in the queue, until it is destroyed.
  class Turn {
   public:
    // `wake`, if not null, is notified when the turn has come.
    explicit Turn(TurnQueue* queue, Event* wake = nullptr) : queue_(queue), wake_(wake) {
      queue_->turns_.push_back(this);
    }
    ~Turn() {
      const bool was_first = has_come();
      std::erase(queue_->turns_, this);
      if (!was_first || queue_->turns_.empty()) return;
      if (Event* next = queue_->turns_.front()->wake_; next != nullptr) next->Notify();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    bool has_come() const { return queue_->turns_.front() == this; }

   private:
    TurnQueue* const queue_;
    Event* const wake_;
  };

  size_t size() const { return turns_.size(); }

 private:
  std::deque<Turn*> turns_;
};

}  // namespace outrider
