// The coordinator's end of the stream to a draft or target server: connects, reconnects, and matches answers
// to questions.
#pragma once

#include <asio/any_io_executor.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/obs/log.h"
#include "coordinator/link/channel.h"
#include "coordinator/link/event.h"

namespace outrider {

// From one attempt to connect to the next.
inline constexpr auto kRetryPause = std::chrono::milliseconds(200);

// Held by shared_ptr. Everything runs on the executor, which has one thread.
template <class Protocol>
class Link : public std::enable_shared_from_this<Link<Protocol>> {
 public:
  using Item = typename Protocol::Item;
  using Result = typename Protocol::Result;
  // Whether a server may be used; an error keeps the link down and is logged.
  using Accept = std::function<absl::Status(const v1::ServerInfo&)>;

  Link(const asio::any_io_executor& executor, std::string address,
       const std::shared_ptr<grpc::ChannelCredentials>& credentials, Accept accept,
       std::function<void()> on_change)
      : executor_(executor),
        address_(std::move(address)),
        accept_(std::move(accept)),
        on_change_(std::move(on_change)),
        channel_(address_, credentials),
        retry_(executor) {}

  // Connects, and reconnects for ever.
  void Start() { Connect(); }

  // Ends the stream; questions in flight are answered CANCELLED.
  void Stop() {
    stopping_ = true;
    retry_.cancel();
    for (Event* event : waiting_up_) event->Notify();
    if (stream_open_) channel_.Cancel();
  }
  bool stopped() const { return stopping_ && !stream_open_; }

  bool up() const { return up_; }
  const std::string& address() const { return address_; }
  const asio::any_io_executor& executor() const { return executor_; }
  // Of the server that is or was last connected to; null before the first.
  const v1::ServerInfo* info() const { return info_ ? &*info_ : nullptr; }

  // Until the link is up or the deadline has come.
  asio::awaitable<bool> WaitUp(Clock::time_point deadline) {
    Event changed(executor_);
    waiting_up_.insert(&changed);
    while (!up_ && Clock::now() < deadline && !stopping_) co_await changed.Wait(deadline);
    waiting_up_.erase(&changed);
    co_return up_;
  }

  // Sends without expecting an answer. Dropped while the link is down: the server frees what it has by lease.
  void Send(Item item) {
    if (up_) channel_.Post(std::move(item));
  }

  // Sends an item and waits for the result with that sequence and round. UNAVAILABLE when the link is or goes
  // down, DEADLINE_EXCEEDED at the deadline, CANCELLED after Abort.
  asio::awaitable<absl::StatusOr<Result>> Call(Item item, std::string sequence_id, uint64_t round,
                                               Clock::time_point deadline) {
    if (!up_) co_return Down();
    Waiter waiter{Event(executor_), std::nullopt, absl::OkStatus()};
    const Key key(std::move(sequence_id), round);
    waiters_[key] = &waiter;
    channel_.Post(std::move(item));
    co_await waiter.event.Wait(deadline);
    if (auto it = waiters_.find(key); it != waiters_.end() && it->second == &waiter) waiters_.erase(it);
    if (waiter.result) co_return *std::move(waiter.result);
    if (!waiter.status.ok()) co_return waiter.status;
    co_return absl::DeadlineExceededError(absl::StrCat("no answer from the ", Protocol::kName, " in time"));
  }

  // Wakes the caller of that item.
  void Abort(const std::string& sequence_id, uint64_t round) {
    auto it = waiters_.find(Key(sequence_id, round));
    if (it != waiters_.end()) Wake(it->second, absl::CancelledError("cancelled"));
  }

 private:
  using Key = std::pair<std::string, uint64_t>;
  struct Waiter {
    Event event;
    std::optional<Result> result;
    absl::Status status;
  };

  static void Wake(Waiter* waiter, absl::Status status) {
    waiter->status = std::move(status);
    waiter->event.Notify();
  }

  absl::Status Down() const {
    return MakeError(absl::StatusCode::kUnavailable, Protocol::kUnavailable,
                     absl::StrCat(Protocol::kName, "_unavailable: no connection to ", address_));
  }

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

  void OnResponse(typename Protocol::Response response) {
    if (response.has_info()) OnInfo(response.info());
    for (Result& result : *response.mutable_results()) {
      auto it = waiters_.find(Key(result.sequence_id(), result.round()));
      // Nobody waits any more for an answer that comes too late.
      if (it == waiters_.end()) continue;
      it->second->result = std::move(result);
      it->second->event.Notify();
    }
  }

  void OnInfo(const v1::ServerInfo& info) {
    if (absl::Status status = accept_(info); !status.ok()) {
      if (refusal_ != status) {
        LogError(
            "refused",
            {{"server", Protocol::kName}, {"address", address_}, {"error", std::string(status.message())}});
      }
      refusal_ = status;
      channel_.Cancel();
      return;
    }
    refusal_ = absl::OkStatus();
    failure_ = absl::StatusCode::kOk;
    info_ = info;
    up_ = true;
    LogInfo("connected", {{"server", Protocol::kName}, {"address", address_}, {"model", info.model()}});
    Changed();
  }

  void OnEnd(const absl::Status& status) {
    stream_open_ = false;
    const std::string error(status.message());
    if (up_) {
      LogWarning("disconnected", {{"server", Protocol::kName}, {"address", address_}, {"error", error}});
    }
    // Why it cannot be reached: once, however often it is tried.
    if (!up_ && !stopping_ && refusal_.ok() && failure_ != status.code()) {
      LogWarning("cannot connect", {{"server", Protocol::kName}, {"address", address_}, {"error", error}});
      failure_ = status.code();
    }
    up_ = false;
    for (const auto& [key, waiter] : waiters_) {
      if (!waiter->result) Wake(waiter, stopping_ ? absl::CancelledError("stopping") : Down());
    }
    Changed();
    if (stopping_) return;
    channel_.ResetBackoff();
    retry_.expires_after(kRetryPause);
    retry_.async_wait([weak = this->weak_from_this()](const asio::error_code& error) {
      if (auto link = weak.lock(); link && !error) link->Connect();
    });
  }

  void Changed() {
    for (Event* event : waiting_up_) event->Notify();
    on_change_();
  }

  const asio::any_io_executor executor_;
  const std::string address_;
  const Accept accept_;
  const std::function<void()> on_change_;
  Channel<Protocol> channel_;
  asio::steady_timer retry_;
  absl::flat_hash_set<Event*> waiting_up_;
  std::optional<v1::ServerInfo> info_;
  absl::Status refusal_;
  absl::StatusCode failure_ = absl::StatusCode::kOk;  // that was logged since it was last connected
  absl::flat_hash_map<Key, Waiter*> waiters_;
  bool stream_open_ = false;
  bool up_ = false;
  bool stopping_ = false;
};

using DraftLink = Link<DraftProtocol>;
using TargetLink = Link<TargetProtocol>;

}  // namespace outrider
