// The coordinator's end of the stream to a draft or target server: connects, reconnects, and matches answers
// to questions.
#pragma once

#include <grpcpp/grpcpp.h>

#include <asio/any_io_executor.hpp>
#include <asio/post.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "common/obs/log.h"
#include "common/rpc/error.h"
#include "common/rpc/outbox.h"
#include "common/rpc/server.h"
#include "coordinator/link/event.h"
#include "outrider/v1/draft.grpc.pb.h"
#include "outrider/v1/target.grpc.pb.h"

namespace outrider {

// The two protocols, which differ in names only.
struct DraftProtocol {
  using Request = v1::ProposeRequest;
  using Response = v1::ProposeResponse;
  using Item = v1::DraftItem;
  using Result = v1::ProposeResult;
  using Reactor = grpc::ClientBidiReactor<Request, Response>;
  using Stub = v1::Draft::Stub;
  static constexpr const char* kName = "draft";
  static constexpr const char* kUnavailable = "DRAFT_UNAVAILABLE";
  static std::unique_ptr<Stub> NewStub(const std::shared_ptr<grpc::Channel>& channel) {
    return v1::Draft::NewStub(channel);
  }
  static void Open(Stub& stub, grpc::ClientContext* context, Reactor* reactor) {
    stub.async()->Propose(context, reactor);
  }
};

struct TargetProtocol {
  using Request = v1::VerifyRequest;
  using Response = v1::VerifyResponse;
  using Item = v1::TargetItem;
  using Result = v1::VerifyResult;
  using Reactor = grpc::ClientBidiReactor<Request, Response>;
  using Stub = v1::Target::Stub;
  static constexpr const char* kName = "target";
  static constexpr const char* kUnavailable = "TARGET_UNAVAILABLE";
  static std::unique_ptr<Stub> NewStub(const std::shared_ptr<grpc::Channel>& channel) {
    return v1::Target::NewStub(channel);
  }
  static void Open(Stub& stub, grpc::ClientContext* context, Reactor* reactor) {
    stub.async()->Verify(context, reactor);
  }
};

// From one attempt to connect to the next.
inline constexpr auto kRetryPause = std::chrono::milliseconds(200);

// One life of the stream. gRPC may be done with it, on its own thread, before Start has returned; so it lives
// until both gRPC and whoever called Start have let go.
template <class Protocol>
class ClientStream final : public Protocol::Reactor {
 public:
  using Response = typename Protocol::Response;
  // Called from gRPC's threads.
  struct Handlers {
    std::function<void(Response&&)> on_response;
    std::function<void(const grpc::Status&)> on_done;
  };

  static std::shared_ptr<ClientStream> Start(typename Protocol::Stub& stub, Handlers handlers) {
    std::shared_ptr<ClientStream> stream(new ClientStream(std::move(handlers)));
    stream->held_by_grpc_ = stream;
    Protocol::Open(stub, &stream->context_, stream.get());
    // Writes come from outside of reactions, so the stream must not end under them.
    stream->AddHold();
    stream->StartRead(&stream->response_);
    stream->StartCall();
    return stream;
  }

  const std::shared_ptr<Outbox<typename Protocol::Request>>& outbox() const { return outbox_; }
  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      outbox_->Close();
      this->RemoveHold();
      return;
    }
    handlers_.on_response(std::move(response_));
    response_.Clear();
    this->StartRead(&response_);
  }
  void OnWriteDone(bool /*ok*/) override { outbox_->OnWritten(); }
  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<ClientStream> last = std::move(held_by_grpc_);
    handlers_.on_done(status);
  }

 private:
  explicit ClientStream(Handlers handlers)
      : handlers_(std::move(handlers)),
        outbox_(std::make_shared<Outbox<typename Protocol::Request>>(
            [this](const auto& message) { this->StartWrite(&message); })) {}

  std::shared_ptr<ClientStream> held_by_grpc_;
  grpc::ClientContext context_;
  const Handlers handlers_;
  const std::shared_ptr<Outbox<typename Protocol::Request>> outbox_;
  Response response_;
};

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
        channel_(grpc::CreateCustomChannel(address_, credentials, ChannelArguments())),
        stub_(Protocol::NewStub(channel_)),
        retry_(executor) {}

  // Connects, and reconnects for ever.
  void Start() { Connect(); }

  // Ends the stream; questions in flight are answered CANCELLED.
  void Stop() {
    stopping_ = true;
    retry_.cancel();
    for (Event* event : waiting_up_) event->Notify();
    if (stream_ != nullptr) stream_->Cancel();
  }
  bool stopped() const { return stopping_ && stream_ == nullptr; }

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
    if (up_) outbox_->Post(std::move(item));
  }

  // Sends an item and waits for the result with that sequence and round. UNAVAILABLE when the link is or goes
  // down, DEADLINE_EXCEEDED at the deadline, CANCELLED after Abort.
  asio::awaitable<absl::StatusOr<Result>> Call(Item item, std::string sequence_id, uint64_t round,
                                               Clock::time_point deadline) {
    if (!up_) co_return Down();
    Waiter waiter{Event(executor_), std::nullopt, absl::OkStatus()};
    const Key key(std::move(sequence_id), round);
    waiters_[key] = &waiter;
    outbox_->Post(std::move(item));
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
    stream_ = ClientStream<Protocol>::Start(
        *stub_, {[on_executor](typename Protocol::Response&& response) {
                   on_executor([response = std::move(response)](Link& link) mutable {
                     link.OnResponse(std::move(response));
                   });
                 },
                 [on_executor](const grpc::Status& status) {
                   on_executor([status](Link& link) { link.OnDone(status); });
                 }});
    outbox_ = stream_->outbox();
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
      stream_->Cancel();
      return;
    }
    refusal_ = absl::OkStatus();
    failure_ = grpc::StatusCode::OK;
    info_ = info;
    up_ = true;
    LogInfo("connected", {{"server", Protocol::kName}, {"address", address_}, {"model", info.model()}});
    Changed();
  }

  void OnDone(const grpc::Status& status) {
    stream_ = nullptr;
    outbox_ = nullptr;
    if (up_) {
      LogWarning("disconnected",
                 {{"server", Protocol::kName}, {"address", address_}, {"error", status.error_message()}});
    }
    // Why it cannot be reached: once, however often it is tried.
    if (!up_ && !stopping_ && refusal_.ok() && failure_ != status.error_code()) {
      LogWarning("cannot connect",
                 {{"server", Protocol::kName}, {"address", address_}, {"error", status.error_message()}});
      failure_ = status.error_code();
    }
    up_ = false;
    for (const auto& [key, waiter] : waiters_) {
      if (!waiter->result) Wake(waiter, stopping_ ? absl::CancelledError("stopping") : Down());
    }
    Changed();
    if (stopping_) return;
    // Names that do not resolve would otherwise be asked for at intervals that grow to two minutes.
    grpc::experimental::ChannelResetConnectionBackoff(channel_.get());
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
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<typename Protocol::Stub> stub_;
  std::shared_ptr<ClientStream<Protocol>> stream_;  // null between connections
  std::shared_ptr<Outbox<typename Protocol::Request>> outbox_;
  asio::steady_timer retry_;
  absl::flat_hash_set<Event*> waiting_up_;
  std::optional<v1::ServerInfo> info_;
  absl::Status refusal_;
  grpc::StatusCode failure_ = grpc::StatusCode::OK;  // that was logged since it was last connected
  absl::flat_hash_map<Key, Waiter*> waiters_;
  bool up_ = false;
  bool stopping_ = false;
};

using DraftLink = Link<DraftProtocol>;
using TargetLink = Link<TargetProtocol>;

}  // namespace outrider
