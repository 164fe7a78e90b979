// Which calls may run, and how they end when the process does.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace outrider {

// Executor thread. Outlives its tickets.
class Admission {
 public:
  // Most samples in progress at once, of all calls together.
  explicit Admission(int max_samples) : max_samples_(max_samples) {}

  // A call that was let in is in progress for as long as it holds its ticket.
  class Ticket {
   public:
    ~Ticket();
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;

   private:
    friend class Admission;
    Ticket(Admission* admission, int samples, std::function<void(absl::Status)> end)
        : admission_(admission), samples_(samples), end_(std::move(end)) {}

    Admission* const admission_;
    const int samples_;
    const std::function<void(absl::Status)> end_;
  };

  // OK, or UNAVAILABLE, reason DRAINING, after Close.
  absl::Status CheckOpen() const;

  // Lets a call in; RESOURCE_EXHAUSTED, reason QUEUE_FULL, when there is no room for its samples. `end` ends
  // the call for that reason; its ticket may go only after `end` has returned.
  absl::StatusOr<std::unique_ptr<Ticket>> Enter(int samples, std::function<void(absl::Status)> end);

  // From now on nobody is let in.
  void Close() { open_ = false; }
  // Ends all calls with UNAVAILABLE; their clients can resume elsewhere.
  void EndAll();

  size_t running() const { return running_.size(); }

 private:
  const int max_samples_;
  int running_samples_ = 0;
  bool open_ = true;
  absl::flat_hash_set<const Ticket*> running_;
};

}  // namespace outrider
