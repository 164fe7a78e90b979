// The servers of one kind that a coordinator uses, and which of them each sequence is on.
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
#include "common/obs/log.h"
#include "common/rpc/fresh_bits.h"
#include "common/spec/types.h"
#include "coordinator/servers/dns_name.h"
#include "coordinator/servers/grpc_timer.h"
#include "coordinator/servers/link.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// ServerView::others of a server that has not reported it, such as a new one.
inline constexpr double kUnknownLoad = -1;

// One server of a pool, as a coordinator sees it.
struct ServerView {
  uint64_t id = 0;          // the same in every coordinator, as a hash of its address
  bool usable = true;       // it is connected and may be sent items
  bool going_away = false;  // it said that it is about to end
  int sequences = 0;        // this coordinator's sequences on it
  double others = 0;        // other coordinators' items that wait or are in progress on it
};

struct PlacementRequest {
  uint64_t affinity = 0;  // PromptAffinity; 0: no server is preferred
  int avoid = -1;         // index of a server that failed, to be taken only as a last resort; -1: none
  uint64_t tie = 0;       // a random number
};

// Returns the index of the least loaded server, or -1 if none can be taken. The load is `sequences` plus
// `others`. Unknown `others` count as the mean of the known ones: otherwise all coordinators would flood a
// new server. Loads less than one apart are equal: between such servers affinity decides, or else chance. The
// server that affinity prefers may have a load one higher, as long as it is below kCheapSequences: so few
// sequences share a step at little cost, and a prompt that need not be computed again saves more.
//
// Affinity is rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to increase hit rates",
// 1998): the server with the largest hash of (affinity, id). If a server comes or goes, only the prompts that
// it gets or had move.
int Place(std::span<const ServerView> servers, const PlacementRequest& request);

inline constexpr int kCheapSequences = 4;  // load below which affinity may outweigh it

// The hash of a prompt's first two blocks; 0 if it has fewer, since a prefix cache then helps little.
// `block_size` is that of the server's cache, in tokens.
uint64_t PromptAffinity(std::span<const TokenId> prompt, int block_size);

// Keeps generations from asking a draft that keeps failing; one for each draft. Closed, it lets every item
// pass. After kFailures failures in a row it opens: nothing passes for a while. Then one item may try: if it
// succeeds the breaker closes, else it opens again, for longer. Executor thread.
class CircuitBreaker {
 public:
  static constexpr int kFailures = 3;

  // Permission to send one item. Report the item's outcome at most once. Without a report the item was given
  // up, and tells nothing about the draft. Must not outlive the breaker.
  class Permit {
   public:
    ~Permit() {
      if (epoch_ == breaker_->epoch_) breaker_->trying_ = false;
    }
    Permit(const Permit&) = delete;
    Permit& operator=(const Permit&) = delete;

    // The draft answered as it should.
    void Succeed() {
      if (epoch_ != breaker_->epoch_) return;
      breaker_->failures_ = 0;
      if (!breaker_->open_) return;
      LogInfo("draft asked again");
      breaker_->Close();
    }
    // The answer was late, lost, or of no use.
    void Fail(Clock::time_point now) {
      if (epoch_ != breaker_->epoch_) return;
      if (!breaker_->open_) {
        if (++breaker_->failures_ < kFailures) return;
        LogWarning("draft left alone", {{"failures", breaker_->failures_}});
      }
      breaker_->Open(now);
    }

   private:
    friend class CircuitBreaker;
    Permit(CircuitBreaker* breaker, uint64_t epoch) : breaker_(breaker), epoch_(epoch) {}

    CircuitBreaker* const breaker_;
    const uint64_t epoch_;  // items sent before the last change of state do not count
  };

  // Whether TryPass would return a permit.
  bool LetsPass(Clock::time_point now) const { return !open_ || (now >= open_until_ && !trying_); }
  // Null if the draft must be left alone now.
  std::unique_ptr<Permit> TryPass(Clock::time_point now) {
    if (!LetsPass(now)) return nullptr;
    trying_ = open_;
    return std::unique_ptr<Permit>(new Permit(this, epoch_));
  }

  // Call before items are sent over a connection, with its number. A new connection closes the breaker.
  void OnConnection(uint64_t number) {
    if (std::exchange(connection_, number) != number) Close();
  }

 private:
  void Open(Clock::time_point now) {
    ++epoch_;
    open_ = true;
    trying_ = false;
    open_until_ = now + pause_.Next();
  }
  void Close() {
    ++epoch_;
    open_ = trying_ = false;
    failures_ = 0;
    pause_.Reset();
  }

  Backoff pause_{std::chrono::milliseconds(500), std::chrono::seconds(8)};
  uint64_t connection_ = 0;
  uint64_t epoch_ = 0;
  int failures_ = 0;  // in a row, while closed
  bool open_ = false;
  Clock::time_point open_until_{};
  bool trying_ = false;  // the trial item is on its way
};

struct PoolOptions {
  LinkOptions link = {};  // of each server, without its address
  // HOST:PORT, or any other address of gRPC, is one server. A DNS name is all servers that it resolves to.
  std::vector<std::string> addresses = {};
  // The interval between resolutions of a name, while any of its servers can be reached.
  Clock::duration resolve_interval = std::chrono::seconds(5);
  // The executor on which names are resolved, which blocks it, and the function that does so.
  asio::any_io_executor resolvers = {};
  std::function<absl::StatusOr<std::vector<std::string>>(const DnsName&)> resolve = Resolve;
};

// Executor thread, except for `resolve`. Must outlive the links and the pins.
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
    CircuitBreaker breaker = {};    // for callers that can do without an answer
    int sequences = 0;              // pins on it
    const DnsName* name = nullptr;  // the DNS name that it was found by; null: none
    bool is_listed = true;          // the name resolved to this server last time

    // Whether a sequence, new or old, may be on this server.
    bool usable(Clock::time_point now) const {
      return link->up() && !link->going_away() && breaker.LetsPass(now);
    }
  };

  // The server that one sequence is on. The sequence stays there as long as the server can be used.
  class Pin {
   public:
    explicit Pin(ServerPool* pool) : pool_(pool) {}
    ~Pin() { Leave(); }
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;

    // Call before an item is sent. Keeps the sequence on its server if that can be used. Otherwise moves it,
    // to another server if possible, where it is new. `sequence_id` is its id on the first server. Prefers
    // the server of the sequence `fork_of`, if not empty. Returns false if no server can be used.
    bool Settle(const std::string& sequence_id, std::span<const TokenId> prompt, const std::string& fork_of) {
      const Clock::time_point now = Clock::now();
      if (server_ != nullptr && server_ != avoided_ && server_->usable(now)) return true;
      const std::shared_ptr<Server> next =
          pool_->Choose(now, prompt, fork_of, std::exchange(avoided_, nullptr));
      if (next == nullptr) return false;
      if (next == server_) return true;
      Release();
      server_ = next;
      // A server that the sequence comes back to was told to release the old id.
      sequence_id_ = moved_ ? NewSequenceId() : sequence_id;
      moved_ = true;
      ++server_->sequences;
      pool_->homes_[sequence_id_] = server_;
      return true;
    }
    // The id under which the server knows the sequence.
    const std::string& sequence_id() const { return sequence_id_; }
    // Continues with another sequence on the same server, and has the server release the present one.
    void Adopt(const std::string& sequence_id) {
      server_->link->PostRelease(sequence_id_);
      pool_->homes_.erase(sequence_id_);
      sequence_id_ = sequence_id;
      pool_->homes_[sequence_id_] = server_;
    }
    // The server has failed the sequence: the next Settle prefers another one.
    void Avoid() { avoided_ = server_; }
    // Has the server release the sequence, which is then on no server.
    void Release() {
      if (server_ == nullptr) return;
      server_->link->PostRelease(sequence_id_);
      Leave();
    }

    // Null if the sequence was not settled, or was released.
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
    bool moved_ = false;  // the sequence was on a server before
  };

  // INVALID_ARGUMENT for an address that is malformed.
  static absl::StatusOr<std::unique_ptr<ServerPool>> Create(GrpcContext& context, PoolOptions options,
                                                            CheckServer check_server,
                                                            std::function<void()> on_change);

  // Connects to all servers, and reconnects forever.
  void Connect();
  void Stop() {
    stopping_ = true;
    for (const auto& server : servers_) server->link->Stop();
    for (const auto& name : names_) name->wake.Notify();
    for (Event* event : waiting_) event->Notify();
  }
  bool stopped() const {
    return stopping_ && resolving_ == 0 &&
           std::ranges::all_of(servers_, [](const auto& server) { return server->link->stopped(); });
  }

  const std::vector<std::shared_ptr<Server>>& servers() const { return servers_; }
  bool up() const { return info_of_any_up() != nullptr; }
  bool present() const {
    return std::ranges::any_of(servers_, [](const auto& server) { return server->link->present(); });
  }
  const LinkOptions& link_options() const { return options_.link; }
  const asio::any_io_executor& executor() const { return executor_; }
  // The common info of all servers met so far, with the least of each limit. Null before the first server.
  const v1::ServerInfo* info() const { return info_ ? &*info_ : nullptr; }
  // The info of any server that is up; null if none is.
  const v1::ServerInfo* info_of_any_up() const {
    for (const auto& server : servers_) {
      if (server->link->up()) return server->link->info();
    }
    return nullptr;
  }
  void Describe(google::protobuf::RepeatedPtrField<v1::ServerState>* states) const;

  // Waits until the pool changes, `wake` is notified, or the deadline has come.
  asio::awaitable<void> WaitChange(Event& wake, Clock::time_point deadline) {
    waiting_.insert(&wake);
    co_await wake.Wait(deadline);
    waiting_.erase(&wake);
  }

 private:
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

  void Add(const std::string& address, const DnsName* name);
  // Returns a server for a sequence; null if none can be used.
  std::shared_ptr<Server> Choose(Clock::time_point now, std::span<const TokenId> prompt,
                                 const std::string& fork_of, const std::shared_ptr<Server>& avoid) const;
  void OnChange();
  void UpdateInfo();
  // Drops servers that are neither listed nor connected.
  void DropGone() {
    std::erase_if(servers_, [](const auto& server) {
      const bool is_gone = !server->is_listed && !server->link->up();
      if (is_gone) {
        LogInfo("left", {{"server", Protocol::kName}, {"address", server->address}});
        server->link->Stop();
      }
      return is_gone;
    });
  }
  bool IsReached(const Name& name) const {
    return std::ranges::any_of(
        servers_, [&](const auto& server) { return server->name == &name.dns && server->link->up(); });
  }
  asio::awaitable<void> KeepResolving(Name& name);
  void OnResolved(Name& name, const absl::StatusOr<std::vector<std::string>>& addresses);

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
  int resolving_ = 0;  // coroutines that run KeepResolving
  bool stopping_ = false;
};

using TargetPool = ServerPool<TargetProtocol>;
using DraftPool = ServerPool<DraftProtocol>;

extern template class ServerPool<TargetProtocol>;
extern template class ServerPool<DraftProtocol>;

}  // namespace outrider
