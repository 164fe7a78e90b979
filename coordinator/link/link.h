// The coordinator's end of the connection to a draft or target server: connects, reconnects, and matches
// results to the items that asked for them.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/obs/log.h"
#include "common/rpc/error.h"
#include "coordinator/link/asio.h"
#include "coordinator/link/channel.h"
#include "coordinator/link/event.h"
#include "coordinator/link/grpc_context.h"
#include "coordinator/link/turn_queue.h"

namespace outrider {

// From one attempt to connect to the next.
inline constexpr auto kRetryPause = std::chrono::milliseconds(200);

struct LinkOptions {
  std::string address = {};
  std::shared_ptr<grpc::ChannelCredentials> credentials = {};
  // How long a server may be away before it counts as gone, and those who wait for it give up.
  Clock::duration patience = std::chrono::seconds(60);
  // A server that has items to answer and sends no answer at all for so long hangs, however alive its
  // process: its connection counts as lost. Keepalive notices only processes that do not run.
  Clock::duration item_timeout = std::chrono::seconds(300);
  // Called for an answer that nobody waits for: it comes too late, or names another sequence or round.
  std::function<void()> on_unexpected = [] {};
};

// Held by shared_ptr. Everything runs on the executor, which has one thread.
template <class Protocol>
class Link : public std::enable_shared_from_this<Link<Protocol>> {
 public:
  using Item = typename Protocol::Item;
  using Result = typename Protocol::Result;
  // Whether a server may be used; an error keeps the link down and is logged.
  using CheckServer = std::function<absl::Status(const v1::ServerInfo&)>;

  // What became of an item.
  struct Answer {
    // The server's own, or UNAVAILABLE when the link was or went down, DEADLINE_EXCEEDED, or CANCELLED.
    absl::Status status;
    Result result;      // of the server, also with an error of its own; else empty
    bool lost = false;  // it was sent, and the link went down before an answer came
  };

  // An item that was sent and is not answered yet, or whose answer nobody has taken yet. Destruction gives
  // the answer up.
  class Call {
   public:
    Call(std::shared_ptr<Link> link, std::string sequence_id, uint64_t round)
        : link_(std::move(link)), key_(std::move(sequence_id), round), answered_(link_->executor_) {
      link_->calls_[key_] = this;
    }
    ~Call() {
      if (auto it = link_->calls_.find(key_); it != link_->calls_.end() && it->second == this) {
        link_->calls_.erase(it);
      }
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    // Once. Until the answer is there, or the deadline has come.
    asio::awaitable<Answer> Wait(Clock::time_point deadline) {
      if (!answer_) co_await answered_.Wait(deadline);
      if (answer_) co_return *std::move(answer_);
      co_return Answer{
          absl::DeadlineExceededError(absl::StrCat("no answer from the ", Protocol::kName, " in time")), {}};
    }

    // The answer that Wait would return now; null if it would wait.
    const Answer* answer() const { return answer_ ? &*answer_ : nullptr; }

    // Called with each result that comes before the answer, if the protocol has any; null: nobody is.
    void OnPartial(std::function<void(const Result&)> handler) { on_partial_ = std::move(handler); }

    // Ends a Wait in progress, or the next one, with CANCELLED.
    void Cancel() { Finish({absl::CancelledError("cancelled"), {}}); }

   private:
    friend class Link;

    // The first answer counts.
    void Finish(Answer answer) {
      if (answer_) return;
      answer_ = std::move(answer);
      answered_.Notify();
    }

    const std::shared_ptr<Link> link_;
    const std::pair<std::string, uint64_t> key_;
    const Clock::time_point started_ = Clock::now();
    Event answered_;
    std::optional<Answer> answer_;
    std::function<void(const Result&)> on_partial_;
  };

  // `on_change` is called when up() or present() has changed.
  Link(GrpcContext& context, const LinkOptions& options, CheckServer check_server,
       std::function<void()> on_change)
      : executor_(context.get_executor()),
        options_(options),
        check_server_(std::move(check_server)),
        on_change_(std::move(on_change)),
        channel_(context, options.address, options.credentials),
        retry_(executor_),
        absence_(executor_),
        silence_(executor_) {}

  // Connects, and reconnects for ever.
  void Connect() {
    if (stopping_) return;
    const std::weak_ptr<Link> weak = this->weak_from_this();
    const auto on_executor = [weak, executor = executor_](auto f) {
      asio::post(executor, [weak, f = std::move(f)]() mutable {
        if (auto link = weak.lock()) f(*link);
      });
    };
    stream_open_ = true;
    channel_.Open({[on_executor](typename Protocol::Response&& response) {
                     on_executor([response = std::move(response)](Link& link) mutable {
                       link.OnResponse(std::move(response));
                     });
                   },
                   [on_executor](const absl::Status& status) {
                     on_executor([status](Link& link) { link.OnEnd(status); });
                   }});
  }

  // Has the server that is connected checked once more: what it is compared with has changed.
  void CheckAgain() {
    if (!up_) return;
    if (absl::Status status = check_server_(*info_); !status.ok()) Refuse(std::move(status));
  }

  // Ends the connection; items in flight are answered CANCELLED.
  void Stop() {
    stopping_ = true;
    for (GrpcTimer* timer : {&retry_, &absence_, &silence_}) timer->cancel();
    for (Event* event : waiting_) event->Notify();
    if (stream_open_) channel_.Cancel();
  }
  bool stopped() const { return stopping_ && !stream_open_; }

  bool up() const { return up_; }
  // It is up, or went down less than options().patience ago.
  bool present() const { return present_; }
  // How many times it has come up.
  uint64_t connections() const { return connections_; }
  // When an item was last answered.
  Clock::time_point last_answer() const { return last_answer_; }
  // Of the server that is or was last connected to; null before the first.
  const v1::ServerInfo* info() const { return info_ ? &*info_ : nullptr; }
  const LinkOptions& options() const { return options_; }
  const asio::any_io_executor& executor() const { return executor_; }
  // For items that may be what the server dies of (LossCount).
  TurnQueue& suspects() { return suspects_; }

  // Until the link goes up or down or is stopped, `wake` is notified, or the deadline has come.
  asio::awaitable<void> WaitChange(Event& wake, Clock::time_point deadline) {
    waiting_.insert(&wake);
    co_await wake.Wait(deadline);
    waiting_.erase(&wake);
  }

  // Until the link is up or the deadline has come.
  asio::awaitable<bool> WaitUp(Clock::time_point deadline) {
    Event changed(executor_);
    while (!up_ && Clock::now() < deadline && !stopping_) co_await WaitChange(changed, deadline);
    co_return up_;
  }

  // Sends an item that is not answered. Dropped while the link is down: the server frees what it has by
  // lease.
  void Post(Item&& item) {
    if (up_) Send(std::move(item));
  }

  // Sends an item, whose answer will name that sequence and round.
  std::unique_ptr<Call> Start(Item&& item, const std::string& sequence_id, uint64_t round) {
    auto call = std::make_unique<Call>(this->shared_from_this(), sequence_id, round);
    if (up_) {
      Send(std::move(item));
      if (!watching_) WatchSilence(call->started_ + options_.item_timeout);
    } else {
      call->Finish({Down(), {}});
    }
    return call;
  }

 private:
  // Items of sequences that go on at the same time, as after the answers of one step, leave together, or the
  // server would begin a step with the first of them.
  void Send(Item&& item) {
    if (!std::exchange(holding_, true)) {
      channel_.Hold();
      asio::post(executor_, [weak = this->weak_from_this()] {
        auto link = weak.lock();
        if (!link) return;
        link->holding_ = false;
        link->channel_.Release();
      });
    }
    channel_.Post(std::move(item));
  }

  absl::Status Down() const {
    return MakeError(absl::StatusCode::kUnavailable, Protocol::kUnavailable,
                     absl::StrCat(Protocol::kName, "_unavailable: no connection to ", options_.address));
  }

  void OnResponse(typename Protocol::Response response) {
    if (response.has_info()) OnInfo(response.info());
    if (response.results_size() > 0) last_answer_ = Clock::now();
    for (Result& result : *response.mutable_results()) {
      const auto it = calls_.find(std::pair(result.sequence_id(), result.round()));
      if (it == calls_.end()) {
        options_.on_unexpected();
        continue;
      }
      if (Protocol::IsPartial(result)) {
        if (it->second->on_partial_) it->second->on_partial_(result);
        continue;
      }
      absl::Status status = FromProto(result.status());
      it->second->Finish({std::move(status), std::move(result)});
    }
  }

  void Refuse(absl::Status status) {
    if (refusal_ != status) {
      LogError("refused", {{"server", Protocol::kName},
                           {"address", options_.address},
                           {"error", std::string(status.message())}});
    }
    refusal_ = std::move(status);
    channel_.Cancel();
  }

  void OnInfo(const v1::ServerInfo& info) {
    if (absl::Status status = check_server_(info); !status.ok()) return Refuse(std::move(status));
    refusal_ = absl::OkStatus();
    failure_ = absl::StatusCode::kOk;
    info_ = info;
    up_ = present_ = true;
    ++connections_;
    absence_.cancel();
    LogInfo("connected",
            {{"server", Protocol::kName}, {"address", options_.address}, {"model", info.model()}});
    Changed();
  }

  void OnEnd(const absl::Status& status) {
    stream_open_ = false;
    const std::string error(status.message());
    if (up_) {
      LogWarning("disconnected",
                 {{"server", Protocol::kName}, {"address", options_.address}, {"error", error}});
    }
    // Why it cannot be reached: once, however often it is tried.
    if (!up_ && !stopping_ && refusal_.ok() && failure_ != status.code()) {
      LogWarning("cannot connect",
                 {{"server", Protocol::kName}, {"address", options_.address}, {"error", error}});
      failure_ = status.code();
    }
    const bool was_up = std::exchange(up_, false);
    for (const auto& [key, call] : calls_) {
      call->Finish({stopping_ ? absl::CancelledError("stopping") : Down(), {}, !stopping_});
    }
    Changed();
    if (stopping_) return;
    if (was_up) AwaitReturn();
    channel_.ConnectAgain(kRetryPause);
    retry_.expires_after(kRetryPause);
    retry_.async_wait([weak = this->weak_from_this()](const boost::system::error_code& error) {
      if (auto link = weak.lock(); link && !error) link->Connect();
    });
  }

  // Declares the server gone if it does not come back in time.
  void AwaitReturn() {
    absence_.expires_after(options_.patience);
    absence_.async_wait([weak = this->weak_from_this()](const boost::system::error_code& error) {
      auto link = weak.lock();
      if (!link || error || link->up_) return;
      link->present_ = false;
      link->Changed();
    });
  }

  // Looks at `until` whether the server hangs. One timer for all items, so that an item costs none.
  void WatchSilence(Clock::time_point until) {
    watching_ = true;
    silence_.expires_at(until);
    silence_.async_wait([weak = this->weak_from_this()](const boost::system::error_code& error) {
      if (auto link = weak.lock(); link && !error) link->CheckSilence();
    });
  }

  void CheckSilence() {
    watching_ = false;
    auto oldest = Clock::time_point::max();
    for (const auto& [key, call] : calls_) {
      if (!call->answer_) oldest = std::min(oldest, call->started_);
    }
    if (!up_ || oldest == Clock::time_point::max()) return;
    const Clock::time_point end = std::max(oldest, last_answer_) + options_.item_timeout;
    if (Clock::now() < end) return WatchSilence(end);
    LogWarning("silent", {{"server", Protocol::kName},
                          {"address", options_.address},
                          {"seconds", Seconds(options_.item_timeout)}});
    channel_.Cancel();
  }

  void Changed() {
    for (Event* event : waiting_) event->Notify();
    on_change_();
  }

  const asio::any_io_executor executor_;
  const LinkOptions options_;
  const CheckServer check_server_;
  const std::function<void()> on_change_;
  Channel<Protocol> channel_;
  GrpcTimer retry_;
  GrpcTimer absence_;
  GrpcTimer silence_;
  TurnQueue suspects_;
  absl::flat_hash_set<Event*> waiting_;
  std::optional<v1::ServerInfo> info_;
  absl::Status refusal_;
  absl::StatusCode failure_ = absl::StatusCode::kOk;  // that was logged since it was last connected
  absl::flat_hash_map<std::pair<std::string, uint64_t>, Call*> calls_;
  Clock::time_point last_answer_{};
  uint64_t connections_ = 0;
  bool stream_open_ = false;
  bool up_ = false;
  bool present_ = false;
  bool watching_ = false;  // silence_ runs
  bool holding_ = false;   // the channel, until what is ready to run has run
  bool stopping_ = false;
};

using DraftLink = Link<DraftProtocol>;
using TargetLink = Link<TargetProtocol>;

}  // namespace outrider
