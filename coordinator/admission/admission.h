// Which calls may run, in which order waiting calls begin, and how calls end when the process does.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/net/asio.h"
#include "coordinator/admission/fair_queue.h"
#include "coordinator/servers/grpc_timer.h"

namespace outrider {

struct AdmissionLimits {
  int max_samples = 256;  // in progress at once, of all calls together
  int max_waiting = 256;  // calls of one client; of all clients kMaxWaitingClients times as many
};

// Executor thread. Outlives its tickets.
class Admission {
 public:
  static constexpr int kMaxWaitingClients = 16;

  // `on_change` is called whenever the number of waiting or running calls may have changed.
  Admission(
      asio::any_io_executor executor, const AdmissionLimits& limits, std::function<void()> on_change = [] {})
      : executor_(std::move(executor)), limits_(limits), on_change_(std::move(on_change)) {}

  // While a call holds its ticket it waits, then is in progress.
  class Ticket {
   public:
    ~Ticket();
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;

    // Waits until the call may run; call it once. CANCELLED after Cancel, DEADLINE_EXCEEDED at `deadline`, or
    // the status that the call was ended with.
    asio::awaitable<absl::Status> WaitForTurn(Clock::time_point deadline);
    // Ends a WaitForTurn in progress.
    void Cancel() { End(absl::CancelledError("cancelled")); }

   private:
    friend class Admission;
    Ticket(Admission* admission, int samples, std::function<void(absl::Status)> end)
        : admission_(admission), samples_(samples), end_(std::move(end)), changed_(admission->executor_) {}
    void Run();
    void End(absl::Status reason);

    Admission* const admission_;
    const int samples_;
    const std::function<void(absl::Status)> end_;
    bool running_ = false;
    absl::Status reason_;  // why it waits no longer
    Event changed_;
  };

  // Lets a call of `client` in: it runs at once, or waits its turn among the clients. RESOURCE_EXHAUSTED,
  // reason QUEUE_FULL, with RetryInfo, when too many wait; UNAVAILABLE, reason DRAINING, after Close.
  // `samples` is in [1, max_samples]. `end` ends a call in progress for a reason; only after it has returned
  // may the ticket be destroyed.
  absl::StatusOr<std::unique_ptr<Ticket>> Enter(const std::string& client, int samples,
                                                std::function<void(absl::Status)> end);

  // Lets nobody in from now on, and ends those that wait with UNAVAILABLE.
  void Close();
  // Ends all calls in progress with UNAVAILABLE; their clients can resume elsewhere.
  void EndAll();

  // Numbers of calls.
  size_t running() const { return running_.size(); }
  size_t waiting() const { return queue_.size(); }

 private:
  absl::Status CheckRoom(const std::string& client) const;
  // Starts the calls whose turn it is, while there is room for their samples.
  void StartNext();

  const asio::any_io_executor executor_;
  const AdmissionLimits limits_;
  const std::function<void()> on_change_;
  FairQueue<Ticket> queue_;
  int running_samples_ = 0;
  bool open_ = true;
  absl::flat_hash_set<Ticket*> running_;
};

}  // namespace outrider
