// The order in which clients that wait are served: deficit round robin (Shreedhar and Varghese, "Efficient
// fair queuing using deficit round-robin", SIGCOMM 1995). Clients take turns, however many requests each has;
// a request that costs more than one takes as many turns. The requests of one client keep their order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <list>
#include <string>
#include <utility>

namespace outrider {

// Holds pointers to requests, which others own. Not thread-safe.
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

  // Returns the request whose turn it is, until it is removed; null if none waits.
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

  // Removes the request that Next returned: it is served.
  void Pop() {
    Flow& flow = flows_.front();
    flow.deficit -= flow.waiting.front().cost;
    flow.waiting.pop_front();
    --size_;
    EndTurn();
    if (flows_.back().waiting.empty()) flows_.pop_back();
  }

  // Removes a request that no longer waits.
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
  size_t size_of(const std::string& client) const {
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
    int deficit = 0;    // what it may spend
    bool paid = false;  // has earned in this turn
  };

  template <class Self>
  static auto FindIn(Self& flows, const std::string& client) {
    return std::find_if(flows.begin(), flows.end(), [&](const Flow& flow) { return flow.client == client; });
  }
  auto Find(const std::string& client) { return FindIn(flows_, client); }
  auto Find(const std::string& client) const { return FindIn(flows_, client); }

  void EndTurn() {
    flows_.front().paid = false;
    flows_.splice(flows_.end(), flows_, flows_.begin());
  }

  std::list<Flow> flows_;  // each has a request that waits; the first one's turn it is
  size_t size_ = 0;
};

}  // namespace outrider
