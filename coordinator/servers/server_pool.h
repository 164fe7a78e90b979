// The servers of one kind that a coordinator works with, and which of them each sequence is on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "common/net/asio.h"
#include "common/rpc/fresh_bits.h"
#include "common/spec/types.h"
#include "coordinator/servers/dns_name.h"
#include "coordinator/servers/grpc_timer.h"
#include "coordinator/servers/link.h"
#include "coordinator/servers/placement.h"
#include "coordinator/servers/retry.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// Keeps generations from asking a draft that keeps failing. One for a draft, shared by all generations.
// Closed, it lets every item pass. After kFailures failures in a row it opens: nothing passes for a while.
// Then one item may try: if it succeeds the breaker closes, if it fails the breaker opens again, for longer.
// Executor thread.
class CircuitBreaker {
 public:
  static constexpr int kFailures = 3;

  // The leave to send one item. What became of the item is reported at most once; without a report it was
  // given up and says nothing of the draft. Must not outlive the breaker.
  class Permit {
   public:
    ~Permit();
    Permit(const Permit&) = delete;
    Permit& operator=(const Permit&) = delete;

    // The draft did what it should.
    void Succeed();
    // It was late, lost, or of no use.
    void Fail(Clock::time_point now);

   private:
    friend class CircuitBreaker;
    Permit(CircuitBreaker* breaker, uint64_t epoch) : breaker_(breaker), epoch_(epoch) {}

    CircuitBreaker* const breaker_;
    const uint64_t epoch_;  // what was sent before the last change of state says nothing of the present one
  };

  // Whether TryPass would give leave.
  bool LetsPass(Clock::time_point now) const { return !open_ || (now >= open_until_ && !trying_); }
  // Null: the draft is to be left alone now.
  std::unique_ptr<Permit> TryPass(Clock::time_point now);

  // Before items are sent over the link's connection of that number. A new one is closed.
  void OnConnection(uint64_t number);

 private:
  void Open(Clock::time_point now);
  void Close();

  Backoff pause_{std::chrono::milliseconds(500), std::chrono::seconds(8)};
  uint64_t connection_ = 0;
  uint64_t epoch_ = 0;
  int failures_ = 0;  // in a row, while closed
  bool open_ = false;
  Clock::time_point open_until_{};
  bool trying_ = false;  // the item that may try is on its way
};

struct PoolOptions {
  LinkOptions link = {};  // of each, but for its address
  // HOST:PORT and whatever else gRPC connects to is one server; a name of DNS is as many as it resolves to.
  std::vector<std::string> addresses = {};
  // From one time that a name is resolved to the next, while any server that it stands for can be reached.
  Clock::duration resolve_interval = std::chrono::seconds(5);
  // Where names are resolved, which blocks; and by what.
  asio::any_io_executor resolvers = {};
  std::function<absl::StatusOr<std::vector<std::string>>(const DnsName&)> resolve = Resolve;
};

// Everything runs on the executor, which has one thread, apart from `resolve`. Lives as long as the links and
// the pins.
template <class Protocol>
class ServerPool {
 public:
  using TheLink = Link<Protocol>;
  // Whether a server may be used, compared with the others.
  using CheckServer = typename TheLink::CheckServer;

  struct Server {
    std::string address;
    uint64_t id = 0;  // ServerView::id
    std::shared_ptr<TheLink> link;
    CircuitBreaker breaker = {};  // for those who can do without an answer
    int sequences = 0;            // pins that are here
    int name = -1;                // index of the name of DNS that stands for it; -1: none
    bool is_listed = true;        // by that name, when it was last resolved

    // A sequence may be here: new ones, and those that are here already.
    bool usable(Clock::time_point now) const {
      return link->up() && !link->going_away() && breaker.LetsPass(now);
    }
  };

  // The server that one sequence is on: it stays there as long as that can be used.
  class Pin {
   public:
    explicit Pin(ServerPool* pool) : pool_(pool) {}
    ~Pin() { Leave(); }
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;

    // Before an item is sent. Where the sequence is unless that cannot be used; then elsewhere if possible,
    // where it is new. `sequence_id` is what the first server knows it by. The sequence `fork_of`, if it is
    // not empty, draws it to its own server. False if there is no server.
    bool Settle(const std::string& sequence_id, std::span<const TokenId> prompt, const std::string& fork_of) {
      const Clock::time_point now = Clock::now();
      if (server_ != nullptr && server_ != avoided_ && server_->usable(now)) return true;
      const std::shared_ptr<Server> next =
          pool_->Choose(now, prompt, fork_of, std::exchange(avoided_, nullptr));
      if (next == nullptr) return false;
      if (next == server_) return true;
      Release();
      server_ = next;
      // A server that it comes back to has been told that the old id is done with.
      sequence_id_ = moved_ ? NewSequenceId() : sequence_id;
      moved_ = true;
      ++server_->sequences;
      pool_->homes_[sequence_id_] = server_;
      return true;
    }
    // Under which that server knows the sequence.
    const std::string& sequence_id() const { return sequence_id_; }
    // Goes on with another sequence of the same server, and has it drop the present one.
    void Adopt(const std::string& sequence_id) {
      server_->link->PostRelease(sequence_id_);
      pool_->homes_.erase(sequence_id_);
      sequence_id_ = sequence_id;
      pool_->homes_[sequence_id_] = server_;
    }
    // The server has failed it, and another is worth a try.
    void Avoid() { avoided_ = server_; }
    // Has the server drop the sequence, which is nowhere then.
    void Release() {
      if (server_ == nullptr) return;
      server_->link->PostRelease(sequence_id_);
      Leave();
    }

    // Null where it was not settled, or was released.
    const std::shared_ptr<Server>& server() const { return server_; }
    ServerPool& pool() const { return *pool_; }

   private:
    void Leave() {
      if (server_ == nullptr) return;
      --server_->sequences;
      pool_->homes_.erase(sequence_id_);
      server_ = nullptr;
    }

    ServerPool* const pool_;
    std::shared_ptr<Server> server_;
    std::shared_ptr<Server> avoided_;  // server_, or null
    std::string sequence_id_;
    bool moved_ = false;  // it was settled before
  };

  // INVALID_ARGUMENT for an address that is no name of DNS though it looks like one.
  static absl::StatusOr<std::unique_ptr<ServerPool>> Create(GrpcContext& context, PoolOptions options,
                                                            CheckServer check_server,
                                                            std::function<void()> on_change);

  // Connects to all servers, for ever.
  void Connect();
  // Has the servers that are connected checked once more: what they are compared with has changed.
  void CheckAgain() {
    for (const auto& server : servers_) server->link->CheckAgain();
  }
  // Ends all connections.
  void Stop();
  bool stopped() const {
    return stopping_ && resolving_ == 0 &&
           std::all_of(servers_.begin(), servers_.end(),
                       [](const auto& server) { return server->link->stopped(); });
  }

  const std::vector<std::shared_ptr<Server>>& servers() const { return servers_; }
  bool up() const { return Any(&TheLink::up); }
  bool present() const { return Any(&TheLink::present); }
  const LinkOptions& link_options() const { return options_.link; }
  const asio::any_io_executor& executor() const { return executor_; }
  // What all servers that were met have in common: of limits, the least. Null before the first.
  const v1::ServerInfo* info() const { return info_ ? &*info_ : nullptr; }
  // Of one that is up; null if none is.
  const v1::ServerInfo* info_of_any_up() const {
    for (const auto& server : servers_) {
      if (server->link->up()) return server->link->info();
    }
    return nullptr;
  }
  void Describe(google::protobuf::RepeatedPtrField<v1::ServerState>* states) const;

  // Until something changes, `wake` is notified, or the deadline has come.
  asio::awaitable<void> WaitChange(Event& wake, Clock::time_point deadline) {
    waiting_.insert(&wake);
    co_await wake.Wait(deadline);
    waiting_.erase(&wake);
  }

 private:
  // A name of DNS, and what wakes whoever resolves it.
  struct Name {
    DnsName dns;
    Event wake;
    absl::Status problem;
  };

  ServerPool(GrpcContext& context, PoolOptions options, CheckServer check_server,
             std::function<void()> on_change)
      : context_(context),
        executor_(context.get_executor()),
        options_(std::move(options)),
        check_server_(std::move(check_server)),
        on_change_(std::move(on_change)) {}

  bool Any(bool (TheLink::*is)() const) const {
    return std::any_of(servers_.begin(), servers_.end(),
                       [is](const auto& server) { return (server->link.get()->*is)(); });
  }
  void Add(const std::string& address, int name);
  // Null if none can be used.
  std::shared_ptr<Server> Choose(Clock::time_point now, std::span<const TokenId> prompt,
                                 const std::string& fork_of, const std::shared_ptr<Server>& avoid) const;
  void OnChange();
  void UpdateInfo();
  // Servers that are neither listed nor reached.
  void DropGone();
  bool IsReached(int name) const {
    return std::any_of(servers_.begin(), servers_.end(),
                       [name](const auto& server) { return server->name == name && server->link->up(); });
  }
  asio::awaitable<void> KeepResolving(int name);
  void OnResolved(int name, const absl::StatusOr<std::vector<std::string>>& addresses);

  GrpcContext& context_;
  const asio::any_io_executor executor_;
  const PoolOptions options_;
  const CheckServer check_server_;
  const std::function<void()> on_change_;
  std::vector<std::shared_ptr<Server>> servers_;
  std::vector<std::unique_ptr<Name>> names_;
  absl::flat_hash_map<std::string, std::weak_ptr<Server>> homes_;  // by sequence id
  absl::flat_hash_set<Event*> waiting_;
  std::optional<v1::ServerInfo> info_;
  int resolving_ = 0;  // coroutines
  bool stopping_ = false;
};

using TargetPool = ServerPool<TargetProtocol>;
using DraftPool = ServerPool<DraftProtocol>;

extern template class ServerPool<TargetProtocol>;
extern template class ServerPool<DraftProtocol>;

}  // namespace outrider
