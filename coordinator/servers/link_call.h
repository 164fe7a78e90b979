// An item in flight to a server, its answer, and what answers tell about the server. Also how items are sent
// again: after which pauses, how often, and in which order.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/net/asio.h"
#include "common/rpc/error.h"
#include "common/rpc/fresh_bits.h"
#include "common/spec/averages.h"
#include "coordinator/servers/grpc_timer.h"

namespace outrider {

template <class Result>
struct LinkAnswer {
  // The server's own, or UNAVAILABLE without a link or an answer, DEADLINE_EXCEEDED, or CANCELLED.
  absl::Status status;
  Result result;      // from the server, also if it answered with an error; else empty
  bool lost = false;  // it was sent, and the link went down before an answer came, or none came in time
};

// Sequence id and round.
using CallKey = std::pair<std::string, uint64_t>;
template <class Result>
class LinkCall;
template <class Result>
using LinkCalls = absl::flat_hash_map<CallKey, LinkCall<Result>*>;

// An item whose answer was not taken yet. Destroying the call gives it up. Made by Link. Executor thread.
template <class Result>
class LinkCall {
 public:
  using Answer = LinkAnswer<Result>;

  // The call is in `calls` while it lives.
  LinkCall(std::shared_ptr<LinkCalls<Result>> calls, const asio::any_io_executor& executor, CallKey key,
           int rows, bool patient)
      : rows(rows), patient(patient), calls_(std::move(calls)), key_(std::move(key)), answered_(executor) {
    (*calls_)[key_] = this;
  }
  ~LinkCall() {
    if (auto it = calls_->find(key_); it != calls_->end() && it->second == this) calls_->erase(it);
  }

  // Waits for the answer or the deadline. Call it once.
  asio::awaitable<Answer> Wait(Clock::time_point deadline) {
    if (!answer_) co_await answered_.Wait(deadline);
    if (answer_) co_return *std::move(answer_);
    co_return Answer{absl::DeadlineExceededError("no answer in time"), {}};
  }

  // The answer that Wait would return now; null if it would wait.
  const Answer* answer() const { return answer_ ? &*answer_ : nullptr; }

  // Sets the handler of results that come before the answer, if the protocol has any; null: none.
  void OnPartial(std::function<void(const Result&)> handler) { on_partial_ = std::move(handler); }

  // Ends a Wait in progress, or the next one, with CANCELLED.
  void Cancel() { Finish({absl::CancelledError("cancelled"), {}}); }

  // For the link. The first answer counts.
  void Finish(Answer answer) {
    if (answer_) return;
    answer_ = std::move(answer);
    answered_.Notify();
  }
  void TellPartial(const Result& result) {
    if (on_partial_) on_partial_(result);
  }

  const int rows;
  const bool patient;
  const Clock::time_point started = Clock::now();

 private:
  const std::shared_ptr<LinkCalls<Result>> calls_;
  const CallKey key_;
  Event answered_;
  std::optional<Answer> answer_;
  std::function<void(const Result&)> on_partial_;
};

// The load and speed of a server, learned from its answers. One thread.
class ServerPace {
 public:
  // A working server is silent no longer than kLeastSilence, or kSilenceFactor times the usual time for its
  // rows: those in flight here, and kRowsOfOthers that other coordinators may have in the step.
  static constexpr auto kLeastSilence = std::chrono::seconds(3);
  static constexpr int kSilenceFactor = 4;
  static constexpr int kRowsOfOthers = 512;

  // Observes that `load` items were at the server when it wrote a message, `ours` of them this coordinator's.
  void ObserveLoad(uint32_t load, int64_t ours) {
    load_ = load;
    load_of_others_.Observe(static_cast<double>(std::max<int64_t>(0, load - ours)));
  }
  // Observes an item that took the time `took`, in a step of `rows` rows.
  void ObserveAnswer(Clock::duration took, int rows) {
    row_seconds_.Observe(Seconds(took) / std::max(rows, 1));
  }
  // Call for a new connection, which may be to another server.
  void ForgetLoad() { load_of_others_ = RunningMean(kLoadDecay); }

  // The load last reported, and the mean load from other coordinators; nullopt before the first report.
  uint32_t load() const { return load_; }
  std::optional<double> load_of_others() const {
    if (load_of_others_.weight() == 0) return std::nullopt;
    return load_of_others_.mean(0);
  }

  // How long a server with `rows` rows in flight may be silent; nullopt before its first answer.
  std::optional<Clock::duration> LongestSilence(int rows) const {
    if (row_seconds_.weight() == 0) return std::nullopt;
    const std::chrono::duration<double> usual(kSilenceFactor * (rows + kRowsOfOthers) * row_seconds_.mean(0));
    return std::max<Clock::duration>(kLeastSilence, std::chrono::duration_cast<Clock::duration>(usual));
  }

 private:
  // Each observation multiplies the weight of the earlier ones by this.
  static constexpr double kLoadDecay = 0.8;
  static constexpr double kTimeDecay = 0.95;

  RunningMean row_seconds_{kTimeDecay};
  RunningMean load_of_others_{kLoadDecay};
  uint32_t load_ = 0;
};

// How long a server that refused an item asks to be left alone: its RetryInfo, but at most a minute.
inline Clock::duration RetryAfter(const absl::Status& status) {
  return absl::ToChronoNanoseconds(std::clamp(RetryDelay(status), absl::ZeroDuration(), absl::Minutes(1)));
}

// Growing pauses between attempts, randomised so that waiters do not return together. One thread.
class Backoff {
 public:
  // The pauses begin at `first` and double up to `most`.
  Backoff(Clock::duration first, Clock::duration most) : first_(first), most_(most), next_(first) {}

  // Returns the next pause, within 50 % of its nominal length, which is no shorter than `at_least`. The
  // jitter is the system's: a request's random numbers decide tokens and nothing else.
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

// Counts how often in a row a connection was lost while a sequence's item was in flight. A server that dies
// loses all items in flight, and one may be the cause. After a first loss all are sent again at once. Items
// lost twice are suspects, sent one at a time (Link::suspects). A third loss tells the culprit. One thread.
class LossCount {
 public:
  // An item that brings the sequence to `end` tokens was answered. An answer to an earlier part clears
  // nothing: the part that was lost is yet to come.
  void OnAnswer(size_t end) {
    if (end >= end_) *this = {};
  }
  // The connection was lost while such an item was in flight.
  void OnLost(size_t end) {
    ++losses_;
    end_ = std::max(end_, end);
  }

  bool suspect() const { return losses_ >= kSuspect; }
  // Whether the item must not be sent again, since it would probably bring down other servers too.
  bool must_give_up() const { return losses_ >= kGuilty; }

 private:
  static constexpr int kSuspect = 2;
  static constexpr int kGuilty = 3;

  int losses_ = 0;
  size_t end_ = 0;  // the largest `end` of the items lost
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
