// Lets one at a time go on, first come, first served.
#pragma once

#include <algorithm>
#include <deque>

#include "coordinator/link/event.h"

namespace outrider {

// Executor thread. Outlives its turns.
class TurnQueue {
 public:
  // A place in the queue, until it is destroyed.
  class Turn {
   public:
    // `wake`, if there is one, is notified when the turn has come.
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
