// A connection to a draft or target server: connects, reconnects, and matches results to their items.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/net/asio.h"
#include "common/obs/log.h"
#include "common/rpc/error.h"
#include "coordinator/servers/channel.h"
#include "coordinator/servers/grpc_context.h"
#include "coordinator/servers/grpc_timer.h"
#include "coordinator/servers/link_call.h"

namespace outrider {

inline constexpr auto kRetryPause = std::chrono::milliseconds(200);  // the pause between attempts to connect
// For this long after a server has gone, or after the start, failures to connect are not logged.
inline constexpr auto kStartPatience = std::chrono::seconds(2);

struct LinkOptions {
  std::string address = {};
  // The name in the server's certificate, if it is not in the address.
  std::string host = {};
  std::shared_ptr<grpc::ChannelCredentials> credentials = {};
  // How long a server may be away before it counts as gone and callers that wait for it give up.
  Clock::duration patience = std::chrono::seconds(60);
  // A server that has items to answer but is silent for this long counts as hung, and its connection as lost;
  // keepalive only notices stopped processes. Items this old count as lost too, even if others are answered.
  Clock::duration item_timeout = std::chrono::seconds(300);
  // Called for an answer that nobody waits for: it is late, or names another sequence or round.
  std::function<void()> on_unexpected = [] {};
  std::function<void()> on_kv_used = [] {};  // called when Link::kv_used has changed
};

// Held by shared_ptr. Everything runs on the executor, which has one thread.
template <class Protocol>
class Link : public std::enable_shared_from_this<Link<Protocol>> {
 public:
  using Item = typename Protocol::Item;
  using Result = typename Protocol::Result;
  // Whether a server may be used; an error keeps the link down and is logged.
  using CheckServer = std::function<absl::Status(const v1::ServerInfo&)>;

  using Answer = LinkAnswer<Result>;
  using Call = LinkCall<Result>;

  // `on_change`: up(), present(), going_away() or answers() has changed, or a try to connect has ended.
  Link(GrpcContext& context, const LinkOptions& options, CheckServer check_server,
       std::function<void()> on_change)
      : executor_(context.get_executor()),
        options_(options),
        check_server_(std::move(check_server)),
        on_change_(std::move(on_change)),
        channel_(context, options.address, options.host, options.credentials),
        retry_(executor_),
        absence_(executor_),
        silence_(executor_) {}

  // Connects, and reconnects forever.
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

  // Ends the connection once the server has read what was posted: it would keep a sequence whose release it
  // has not read until the lease ends. Items in flight are answered CANCELLED.
  void Stop() {
    stopping_ = true;
    for (GrpcTimer* timer : {&retry_, &absence_, &silence_}) timer->cancel();
    if (stream_open_) up_ ? channel_.CloseAfterWrites() : channel_.Cancel();
  }
  bool stopped() const { return stopping_ && !stream_open_; }

  bool up() const { return up_; }
  // Whether it is up, or went down less than options().patience ago.
  bool present() const { return present_; }
  // Whether the connected server said that it is about to end.
  bool going_away() const { return going_away_; }
  // The share of a target's KV cache that sequences use, as last reported.
  float kv_used() const { return kv_used_; }
  const ServerPace& pace() const { return pace_; }
  // Whether the server has answered an item since it last counted as hung.
  bool answers() const { return answers_; }
  // Why the server is refused; OK if it is not.
  const absl::Status& refusal() const { return refusal_; }
  // Whether another server can take over the items of this one, so that a silence need not be waited out.
  void set_replaceable(bool replaceable) { replaceable_ = replaceable; }
  // How many times the link has come up.
  uint64_t connections() const { return connections_; }
  Clock::time_point last_answer() const { return last_answer_; }
  // The info of the server that the link is, or was last, connected to; null before the first connection.
  const v1::ServerInfo* info() const { return info_ ? &*info_ : nullptr; }
  const LinkOptions& options() const { return options_; }
  const asio::any_io_executor& executor() const { return executor_; }
  // The queue of items that may have brought servers down (LossCount).
  TurnQueue& suspects() { return suspects_; }

  // Sends an item that needs no answer. Drops it while the link is down: leases free what the server has.
  void Post(Item&& item) {
    if (up_) Send(std::move(item));
  }
  void PostRelease(const std::string& sequence_id) {
    Item item;
    item.mutable_release()->set_sequence_id(sequence_id);
    Post(std::move(item));
  }

  // Sends an item, whose answer will name this sequence and round. The link waits for the answer to a
  // `patient` item for item_timeout, even if another server could take over.
  std::unique_ptr<Call> Start(Item&& item, const std::string& sequence_id, uint64_t round,
                              bool patient = false) {
    // The calls keep the link alive.
    std::shared_ptr<LinkCalls<Result>> calls(this->shared_from_this(), &calls_);
    auto call = std::make_unique<Call>(std::move(calls), executor_, CallKey(sequence_id, round),
                                       Protocol::Rows(item), patient);
    if (up_) {
      Send(std::move(item));
      if (!watching_) WatchSilence(Clock::time_point::max());
    } else {
      call->Finish({Down(), {}});
    }
    return call;
  }

 private:
  // Items of sequences that continue at the same time, such as after the answers of one step, leave together.
  // Otherwise the server would begin a step with the first of them.
  void Send(Item&& item) {
    if (!std::exchange(holding_, true)) {
      channel_.outbox().Hold();
      asio::post(executor_, [weak = this->weak_from_this()] {
        auto link = weak.lock();
        if (!link) return;
        link->holding_ = false;
        link->channel_.outbox().Release();
      });
    }
    channel_.outbox().Post(std::move(item));
  }

  absl::Status Down() const {
    return MakeError(absl::StatusCode::kUnavailable, Protocol::kUnavailable,
                     absl::StrCat(Protocol::kName, "_unavailable: no connection to ", options_.address));
  }

  void OnResponse(typename Protocol::Response response) {
    if (response.has_info()) OnInfo(response.info());
    const auto waits = [](const auto& entry) { return entry.second->answer() == nullptr; };
    pace_.ObserveLoad(response.load(), std::count_if(calls_.begin(), calls_.end(), waits));
    if constexpr (requires { response.kv_used(); }) {
      const float used = response.kv_used() >= 0 && response.kv_used() <= 1 ? response.kv_used() : 0;
      if (std::exchange(kv_used_, used) != used) options_.on_kv_used();
    }
    if (response.results_size() > 0) {
      last_answer_ = Clock::now();
      if (!std::exchange(answers_, true)) on_change_();
    }
    for (Result& result : *response.mutable_results()) {
      const auto it = calls_.find(CallKey(result.sequence_id(), result.round()));
      if (it == calls_.end()) {
        options_.on_unexpected();
        continue;
      }
      if (Protocol::IsPartial(result)) {
        it->second->TellPartial(result);
        continue;
      }
      absl::Status status = FromProto(result.status());
      pace_.ObserveAnswer(last_answer_ - it->second->started,
                          std::max(it->second->rows, static_cast<int>(result.timing().batch_rows())));
      it->second->Finish({std::move(status), std::move(result)});
    }
    if (up_ && std::exchange(going_away_, response.going_away()) != response.going_away()) {
      LogInfo(going_away_ ? "going away" : "stays",
              {{"server", Protocol::kName}, {"address", options_.address}});
      on_change_();
    }
  }

  void Refuse(absl::Status status) {
    if (refusal_ != status) {
      LogError("refused",
               {{"server", Protocol::kName}, {"address", options_.address}, {"error", status.message()}});
    }
    refusal_ = std::move(status);
    channel_.Cancel();
  }

  void OnInfo(const v1::ServerInfo& info) {
    if (absl::Status status = check_server_(info); !status.ok()) return Refuse(std::move(status));
    refusal_ = absl::OkStatus();
    failure_ = absl::StatusCode::kOk;
    info_ = info;
    pace_.ForgetLoad();
    going_away_ = false;
    up_ = present_ = true;
    ++connections_;
    absence_.cancel();
    LogInfo("connected",
            {{"server", Protocol::kName}, {"address", options_.address}, {"model", info.model()}});
    on_change_();
  }

  void OnEnd(const absl::Status& status) {
    stream_open_ = false;
    const auto warn = [&](absl::string_view event) {
      LogWarning(event, {{"server", Protocol::kName},
                         {"address", options_.address},
                         {"code", absl::StatusCodeToString(status.code())},
                         {"error", status.message()}});
    };
    if (up_) {
      away_since_ = Clock::now();
      if (!stopping_) warn("disconnected");
    }
    // Logs once why the server cannot be reached, however often that fails, but not while it may be starting.
    const bool is_starting = Clock::now() < away_since_ + kStartPatience;
    if (!up_ && !stopping_ && refusal_.ok() && failure_ != status.code() && !is_starting) {
      warn("cannot connect");
      failure_ = status.code();
    }
    const bool was_up = std::exchange(up_, false);
    going_away_ = false;
    for (const auto& [key, call] : calls_) {
      call->Finish({stopping_ ? absl::CancelledError("stopping") : Down(), {}, !stopping_});
    }
    on_change_();
    if (stopping_) return;
    if (was_up) CallAt(Clock::now() + options_.patience, absence_, &Link::DeclareGone);
    channel_.ConnectAgain(kRetryPause);
    CallAt(Clock::now() + kRetryPause, retry_, &Link::Connect);
  }

  void DeclareGone() {
    if (up_) return;
    present_ = false;
    on_change_();
  }

  // How long the server may be silent while it has this item.
  Clock::duration PatienceWith(const Call& call) const {
    if (call.patient || !replaceable_) return options_.item_timeout;
    int rows = 0;
    for (const auto& [key, other] : calls_) rows += other->answer() != nullptr ? 0 : other->rows;
    return std::min(options_.item_timeout, pace_.LongestSilence(rows).value_or(options_.item_timeout));
  }

  // Checks by `until` whether the server hangs: it may become replaceable. One timer serves all items.
  void WatchSilence(Clock::time_point until) {
    watching_ = true;
    const auto soon = std::min<Clock::duration>(options_.item_timeout, ServerPace::kLeastSilence);
    CallAt(std::min(until, Clock::now() + soon), silence_, &Link::CheckSilence);
  }

  void CheckSilence() {
    watching_ = false;
    const Clock::time_point now = Clock::now();
    auto end = Clock::time_point::max();
    auto since = end;
    for (const auto& [key, call] : calls_) {
      if (call->answer() != nullptr) continue;
      since = std::min(since, call->started);
      end = std::min(end, std::max(call->started, last_answer_) + PatienceWith(*call));
    }
    if (!up_ || end == Clock::time_point::max()) return;
    if (now < end) return WatchSilence(std::min(end, GiveUpOld(now)));
    LogWarning("silent", {{"server", Protocol::kName},
                          {"address", options_.address},
                          {"seconds", Seconds(now - std::max(since, last_answer_))}});
    answers_ = false;
    channel_.Cancel();
  }

  // Fails the items that are too old. Returns when the next item will be.
  Clock::time_point GiveUpOld(Clock::time_point now) {
    auto next = Clock::time_point::max();
    for (const auto& [key, call] : calls_) {
      if (call->answer() != nullptr) continue;
      const Clock::time_point end = call->started + options_.item_timeout;
      if (now < end) {
        next = std::min(next, end);
        continue;
      }
      LogWarning("item lost", {{"server", Protocol::kName},
                               {"address", options_.address},
                               {"seconds", Seconds(now - call->started)}});
      call->Finish({MakeError(absl::StatusCode::kUnavailable, Protocol::kUnavailable,
                              absl::StrCat("no answer to this item from ", options_.address)),
                    {},
                    true});
    }
    return next;
  }

  // Calls the method at that time, unless the timer is set again or the link is gone.
  void CallAt(Clock::time_point time, GrpcTimer& timer, void (Link::*method)()) {
    timer.expires_at(time);
    timer.async_wait([weak = this->weak_from_this(), method](const boost::system::error_code& error) {
      if (auto link = weak.lock(); link && !error) (link.get()->*method)();
    });
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
  std::optional<v1::ServerInfo> info_;
  absl::Status refusal_;
  Clock::time_point away_since_ = Clock::now();
  absl::StatusCode failure_ = absl::StatusCode::kOk;  // the last one logged since the link was up
  LinkCalls<Result> calls_;
  Clock::time_point last_answer_{};
  ServerPace pace_;
  uint64_t connections_ = 0;
  bool stream_open_ = false;
  bool up_ = false;
  bool present_ = false;
  bool watching_ = false;  // silence_ runs
  bool going_away_ = false;
  float kv_used_ = 0;
  bool answers_ = true;
  bool replaceable_ = false;
  bool holding_ = false;  // the outbox is held until the handlers that are ready have run
  bool stopping_ = false;
};

using DraftLink = Link<DraftProtocol>;
using TargetLink = Link<TargetProtocol>;

}  // namespace outrider
