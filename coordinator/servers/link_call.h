// An item on its way to a server, and its answer.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/net/asio.h"
#include "coordinator/servers/grpc_timer.h"

namespace outrider {

// What became of an item.
template <class Result>
struct LinkAnswer {
  // The server's own; UNAVAILABLE if the link was down or went down, or the answer did not come;
  // DEADLINE_EXCEEDED; or CANCELLED.
  absl::Status status;
  Result result;      // of the server, also with an error of its own; else empty
  bool lost = false;  // it was sent, and the link went down before an answer came, or none came in time
};

// Sequence and round.
using CallKey = std::pair<std::string, uint64_t>;
template <class Result>
class LinkCall;
template <class Result>
using LinkCalls = absl::flat_hash_map<CallKey, LinkCall<Result>*>;

// An item that was sent and whose answer has not come, or has not been taken. Destruction gives the answer
// up. Made by Link. Executor thread.
template <class Result>
class LinkCall {
 public:
  using Answer = LinkAnswer<Result>;

  // Is in `calls` while it lives. `server`, a constant, is the other side's name in messages.
  LinkCall(std::shared_ptr<LinkCalls<Result>> calls, const asio::any_io_executor& executor,
           absl::string_view server, CallKey key, int rows, bool patient)
      : rows(rows),
        patient(patient),
        calls_(std::move(calls)),
        server_(server),
        key_(std::move(key)),
        answered_(executor) {
    (*calls_)[key_] = this;
  }
  ~LinkCall() {
    if (auto it = calls_->find(key_); it != calls_->end() && it->second == this) calls_->erase(it);
  }
  LinkCall(const LinkCall&) = delete;
  LinkCall& operator=(const LinkCall&) = delete;

  // Waits for the answer or the deadline. Call it once.
  asio::awaitable<Answer> Wait(Clock::time_point deadline) {
    if (!answer_) co_await answered_.Wait(deadline);
    if (answer_) co_return *std::move(answer_);
    co_return Answer{absl::DeadlineExceededError(absl::StrCat("no answer from the ", server_, " in time")),
                     {}};
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
  const absl::string_view server_;
  const CallKey key_;
  Event answered_;
  std::optional<Answer> answer_;
  std::function<void(const Result&)> on_partial_;
};

}  // namespace outrider
