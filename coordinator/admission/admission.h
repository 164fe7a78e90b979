// Decides which calls may run, in which order waiting calls begin, and how calls end when the process does.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "common/net/asio.h"
#include "coordinator/servers/grpc_timer.h"

namespace outrider {

// A queue that serves clients by deficit round robin (Shreedhar and Varghese, "Efficient fair queuing using
// deficit round-robin", SIGCOMM 1995). Clients take turns, however many requests each has. A request that
// costs more than one takes as many turns as it costs. The requests of one client keep their order. Holds
// pointers to requests, which others own. Not thread-safe.
template <class Request>
class FairQueue {
 public:
  // `cost` >= 1.
  void Push(const std::string& client, int cost, Request* request) {
    ++size_;
    const auto flow = Find(client);
    if (flow != flows_.end()) return flow->waiting.push_back({request, cost});
    flows_.push_back({.client = client, .waiting = {{request, cost}}});
  }

  // Returns the request whose turn it is, the same one until it is removed; null if none waits.
  Request* Next() {
    if (flows_.empty()) return nullptr;
    while (flows_.front().deficit < flows_.front().waiting.front().cost) {
      Flow& flow = flows_.front();
      // A flow earns once a turn.
      if (!std::exchange(flow.paid, true)) {
        ++flow.deficit;
      } else {
        EndTurn();
      }
    }
    return flows_.front().waiting.front().request;
  }

  // Removes the request that Next returned, because it is served now.
  void Pop() {
    Flow& flow = flows_.front();
    flow.deficit -= flow.waiting.front().cost;
    flow.waiting.pop_front();
    --size_;
    EndTurn();
    if (flows_.back().waiting.empty()) flows_.pop_back();
  }

  void Remove(const Request* request) {
    for (auto flow = flows_.begin(); flow != flows_.end(); ++flow) {
      const size_t removed =
          std::erase_if(flow->waiting, [&](const Entry& e) { return e.request == request; });
      if (removed == 0) continue;
      --size_;
      if (flow->waiting.empty()) flows_.erase(flow);
      return;
    }
  }

  size_t size() const { return size_; }
  size_t size_of(const std::string& client) {
    const auto flow = Find(client);
    return flow == flows_.end() ? 0 : flow->waiting.size();
  }

 private:
  struct Entry {
    Request* request;
    int cost;
  };
  struct Flow {
    std::string client;
    std::deque<Entry> waiting;
    int deficit = 0;    // the cost that it may spend
    bool paid = false;  // has earned in this turn
  };

  auto Find(const std::string& client) { return std::ranges::find(flows_, client, &Flow::client); }

  void EndTurn() {
    flows_.front().paid = false;
    flows_.splice(flows_.end(), flows_, flows_.begin());
  }

  std::list<Flow> flows_;  // each has a waiting request; it is the turn of the first
  size_t size_ = 0;
};

struct AdmissionLimits {
  int max_samples = 256;  // in progress at once, of all calls together
  int max_waiting = 256;  // waiting calls of one client; of all clients, kMaxWaitingClients times as many
};

// Executor thread. Outlives its tickets.
class Admission {
 public:
  static constexpr int kMaxWaitingClients = 16;

  // `on_change` is called whenever the number of waiting or running calls may have changed.
  Admission(
      asio::any_io_executor executor, const AdmissionLimits& limits, std::function<void()> on_change = [] {})
      : executor_(std::move(executor)), limits_(limits), on_change_(std::move(on_change)) {}

  // A call holds its ticket while it waits and while it is in progress.
  class Ticket {
   public:
    ~Ticket();

    // Waits, once, until the call may run. CANCELLED after Cancel, DEADLINE_EXCEEDED, or the error of Close.
    asio::awaitable<absl::Status> WaitForTurn(Clock::time_point deadline);
    // Ends a WaitForTurn in progress.
    void Cancel() { End(absl::CancelledError("cancelled")); }

   private:
    friend class Admission;
    Ticket(Admission* admission, int samples, std::function<void(absl::Status)> end)
        : admission_(admission), samples_(samples), end_(std::move(end)), changed_(admission->executor_) {}
    void Run() {
      running_ = true;
      admission_->running_samples_ += samples_;
      admission_->running_.insert(this);
      changed_.Notify();
    }
    void End(absl::Status reason) {
      reason_ = std::move(reason);
      changed_.Notify();
    }

    Admission* const admission_;
    const int samples_;
    const std::function<void(absl::Status)> end_;
    bool running_ = false;
    absl::Status reason_;  // why it no longer waits
    Event changed_;
  };

  // Admits a call of `client`, which runs at once or waits its turn. RESOURCE_EXHAUSTED, reason QUEUE_FULL,
  // with RetryInfo, if too many calls wait; UNAVAILABLE, reason DRAINING, after Close. `samples` is in [1,
  // max_samples]. `end` ends a call in progress; the ticket must not be destroyed before `end` has returned.
  absl::StatusOr<std::unique_ptr<Ticket>> Enter(const std::string& client, int samples,
                                                std::function<void(absl::Status)> end);

  // Admits no calls from now on, and ends those that wait with UNAVAILABLE.
  void Close();
  // Ends all calls in progress with UNAVAILABLE; their clients can resume elsewhere.
  void EndAll();

  // Numbers of calls.
  size_t running() const { return running_.size(); }
  size_t waiting() const { return queue_.size(); }

 private:
  void StartNext() {
    while (Ticket* const next = queue_.Next()) {
      if (running_samples_ + next->samples_ > limits_.max_samples) return;
      queue_.Pop();
      next->Run();
    }
  }

  const asio::any_io_executor executor_;
  const AdmissionLimits limits_;
  const std::function<void()> on_change_;
  FairQueue<Ticket> queue_;
  int running_samples_ = 0;
  bool open_ = true;
  absl::flat_hash_set<Ticket*> running_;
};

}  // namespace outrider
