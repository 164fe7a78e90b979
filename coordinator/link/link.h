// The coordinator's end of the connection to a draft or target server: connects, reconnects, and matches
// results to the items that asked for them.
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
#include "absl/strings/str_cat.h"
#include "common/obs/log.h"
#include "common/rpc/error.h"
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
  using CheckServer = std::function<absl::Status(const v1::ServerInfo&)>;

  // What became of an item.
  struct Answer {
    // The server's own, or UNAVAILABLE when the link was or went down, DEADLINE_EXCEEDED, or CANCELLED.
    absl::Status status;
    Result result;  // of the server, also with an error of its own; else empty
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
    Event answered_;
    std::optional<Answer> answer_;
  };

  Link(const asio::any_io_executor& executor, const std::string& address,
       const std::shared_ptr<grpc::ChannelCredentials>& credentials, CheckServer check_server,
       std::function<void()> on_change)
      : executor_(executor),
        address_(address),
        check_server_(std::move(check_server)),
        on_change_(std::move(on_change)),
        channel_(address, credentials),
        retry_(executor) {}

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

  // Ends the connection; items in flight are answered CANCELLED.
  void Stop() {
    stopping_ = true;
    retry_.cancel();
    for (Event* event : waiting_up_) event->Notify();
    if (stream_open_) channel_.Cancel();
  }
  bool stopped() const { return stopping_ && !stream_open_; }

  bool up() const { return up_; }
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

  // Sends an item that is not answered. Dropped while the link is down: the server frees what it has by
  // lease.
  void Post(Item&& item) {
    if (up_) channel_.Post(std::move(item));
  }

  // Sends an item, whose answer will name that sequence and round.
  std::unique_ptr<Call> Start(Item&& item, const std::string& sequence_id, uint64_t round) {
    auto call = std::make_unique<Call>(this->shared_from_this(), sequence_id, round);
    if (up_) {
      channel_.Post(std::move(item));
    } else {
      call->Finish({Down(), {}});
    }
    return call;
  }

 private:
  absl::Status Down() const {
    return MakeError(absl::StatusCode::kUnavailable, Protocol::kUnavailable,
                     absl::StrCat(Protocol::kName, "_unavailable: no connection to ", address_));
  }

  void OnResponse(typename Protocol::Response response) {
    if (response.has_info()) OnInfo(response.info());
    for (Result& result : *response.mutable_results()) {
      const auto it = calls_.find(std::pair(result.sequence_id(), result.round()));
      // Nobody waits any more for an answer that comes too late.
      if (it == calls_.end()) continue;
      absl::Status status = FromProto(result.status());
      it->second->Finish({std::move(status), std::move(result)});
    }
  }

  void OnInfo(const v1::ServerInfo& info) {
    if (absl::Status status = check_server_(info); !status.ok()) {
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
    for (const auto& [key, call] : calls_) {
      call->Finish({stopping_ ? absl::CancelledError("stopping") : Down(), {}});
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
  const CheckServer check_server_;
  const std::function<void()> on_change_;
  Channel<Protocol> channel_;
  asio::steady_timer retry_;
  absl::flat_hash_set<Event*> waiting_up_;
  std::optional<v1::ServerInfo> info_;
  absl::Status refusal_;
  absl::StatusCode failure_ = absl::StatusCode::kOk;  // that was logged since it was last connected
  absl::flat_hash_map<std::pair<std::string, uint64_t>, Call*> calls_;
  bool stream_open_ = false;
  bool up_ = false;
  bool stopping_ = false;
};

using DraftLink = Link<DraftProtocol>;
using TargetLink = Link<TargetProtocol>;

}  // namespace outrider
