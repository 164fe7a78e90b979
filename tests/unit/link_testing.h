// Fake draft and target servers that answer as a test tells them, and a link to one of them.
#pragma once

#include <grpc/grpc.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "bench/polling_thread.h"
#include "bench/temporary_folder.h"
#include "common/net/asio.h"
#include "common/rpc/batch_server.h"
#include "common/rpc/error.h"
#include "common/rpc/queue_poller.h"
#include "common/rpc/server.h"
#include "coordinator/servers/grpc_context.h"
#include "coordinator/servers/link.h"
#include "outrider/v1/draft.grpc.pb.h"
#include "outrider/v1/target.grpc.pb.h"

namespace outrider {

// Set at the start of the program, as in the services, since gRPC reads it only once.
inline const bool kPollsAsTheServicesDo = (GiveQueuesTheirConnections(), true);

// Only a guard against hanging.
inline constexpr auto kLong = std::chrono::seconds(60);

inline const v1::SequenceUpdate& UpdateOf(const v1::TargetItem& item) { return item.verify().sequence(); }
inline const v1::SequenceUpdate& UpdateOf(const v1::DraftItem& item) { return item.propose().sequence(); }
inline bool IsControl(const v1::TargetItem& item) { return !item.has_verify(); }
inline bool IsControl(const v1::DraftItem& item) { return !item.has_propose(); }

// The value of a counter with one label, by the label's value; 0 if there is none yet.
inline double CounterOf(const prometheus::Registry& registry, const std::string& name,
                        const std::string& label) {
  for (const auto& family : registry.Collect()) {
    if (family.name != name) continue;
    for (const auto& metric : family.metric) {
      if (metric.label[0].value == label) return metric.counter.value;
    }
  }
  return 0;
}

// A fake server, whose reaction to items is set by a test.
template <class Protocol>
class FakeServer {
 public:
  using Item = typename Protocol::Item;
  using Result = typename Protocol::Result;
  enum class Action { kAnswer, kIgnore, kDropStream };
  // Fills in the answer beyond sequence and round. Called for one item at a time.
  using OnItem = std::function<Action(const Item&, Result*)>;

  FakeServer() {
    info.set_vocab_size(4096);
    info.set_max_context(2048);
    info.set_max_draft_tokens(8);
    info.set_boot_id(1);
  }

  // Sets the reaction to items from now on. At first every item gets an empty answer.
  void Do(OnItem on_item) {
    absl::MutexLock lock(&mutex_);
    on_item_ = std::move(on_item);
  }
  void Do(Action action) {
    Do([action](const Item&, Result*) { return action; });
  }
  // Sets a function that may give a result to send before an item's answer.
  void Before(std::function<std::optional<Result>(const Item&)> before) {
    absl::MutexLock lock(&mutex_);
    before_ = std::move(before);
  }
  // Returns the controls that have arrived since the last call.
  std::vector<Item> TakeControls() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(controls_, {});
  }
  // Returns the number of items that have arrived since the last call, without controls.
  int TakeCount() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(count_, 0);
  }

  v1::ServerInfo info;
  std::atomic<int> load = 0;  // that it reports
  std::atomic<float> kv_used = 0;
  std::atomic<int> released = 0;  // sequences

  // For the services below.
  template <class Results, class Streams>
  void Handle(const Item& item, const std::shared_ptr<Results>& results, Streams& streams) {
    if (item.has_release()) ++released;
    if (IsControl(item)) {
      absl::MutexLock lock(&mutex_);
      controls_.push_back(item);
      return;
    }
    Result result;
    result.set_sequence_id(UpdateOf(item).sequence_id());
    result.set_round(UpdateOf(item).round());
    result.set_cached(UpdateOf(item).base() + static_cast<uint32_t>(UpdateOf(item).tokens_size()));
    Action action = Action::kAnswer;
    std::optional<Result> before;
    {
      absl::MutexLock lock(&mutex_);
      ++count_;
      if (before_) before = before_(item);
      if (on_item_) action = on_item_(item, &result);
    }
    if (before) {
      before->set_sequence_id(result.sequence_id());
      before->set_round(result.round());
      results->Post(*std::move(before));
    }
    if (action == Action::kAnswer) results->Post(std::move(result));
    if (action == Action::kDropStream) streams.EndAll();
  }

 private:
  absl::Mutex mutex_;
  OnItem on_item_ ABSL_GUARDED_BY(mutex_);
  std::function<std::optional<Result>(const Item&)> before_ ABSL_GUARDED_BY(mutex_);
  std::vector<Item> controls_ ABSL_GUARDED_BY(mutex_);
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

class FakeTarget final : public FakeServer<TargetProtocol> {
 public:
  using Protocol = TargetProtocol;

  // For one gRPC server.
  class Service final : public v1::Target::WithRawMethod_Verify<v1::Target::Service> {
   public:
    explicit Service(FakeTarget& fake)
        : streams_(
              fake.info,
              [this, &fake](auto&& item, const auto& results) { fake.Handle(item, results, streams_); },
              [&fake] {
                return ServerLoad{fake.load, fake.kv_used};
              }) {}
    void SayGoingAway() { streams_.Close(); }
    void Serve(RpcServer& server) {
      streams_.Serve(server, [this](auto* context, auto* stream, auto* queue, auto* tag) {
        RequestVerify(context, stream, queue, queue, tag);
      });
    }

   private:
    BatchServer<v1::VerifyRequest, v1::VerifyResponse> streams_;
  };
};

class FakeDraft final : public FakeServer<DraftProtocol> {
 public:
  using Protocol = DraftProtocol;

  // For one gRPC server.
  class Service final : public v1::Draft::WithRawMethod_Propose<v1::Draft::Service> {
   public:
    explicit Service(FakeDraft& fake)
        : streams_(
              fake.info,
              [this, &fake](auto&& item, const auto& results) { fake.Handle(item, results, streams_); },
              [&fake] {
                return ServerLoad{fake.load, fake.kv_used};
              }) {}
    void SayGoingAway() { streams_.Close(); }
    void Serve(RpcServer& server) {
      streams_.Serve(server, [this](auto* context, auto* stream, auto* queue, auto* tag) {
        RequestPropose(context, stream, queue, queue, tag);
      });
    }

   private:
    BatchServer<v1::ProposeRequest, v1::ProposeResponse> streams_;
  };
};

// A server, the executor, and a link between them. The server's socket is a file of this test, so that nobody
// else can have its address while the server is away.
template <class Server>
class LinkFixture : public ::testing::Test {
 protected:
  using TheLink = Link<typename Server::Protocol>;

  // Keeps gRPC from ending itself with the last server of each test.
  static void SetUpTestSuite() { grpc_init(); }
  static void TearDownTestSuite() { grpc_shutdown(); }

  void TearDown() override {
    if (link_ == nullptr) return;
    link_->Stop();
    while (!link_->stopped()) context_.RunSome(Clock::time_point::max());
  }

  // Starts the server, or starts it again at the same address after Close.
  void Listen() {
    service_ = std::make_unique<typename Server::Service>(server_);
    auto server = RpcServer::Start(address_, {}, {service_.get()}, polling_.poller());
    ASSERT_TRUE(server.ok()) << server.status();
    rpc_ = *std::move(server);
    service_->Serve(*rpc_);
  }
  // Ends the server, and waits until the link has noticed.
  void Close() {
    rpc_ = nullptr;
    RunUntil([this] { return !link_->up(); });
  }
  virtual void MakeLink(LinkOptions options = {}) {
    options.address = address_;
    options.credentials = grpc::InsecureChannelCredentials();
    link_ = std::make_shared<TheLink>(
        context_, options, [](const v1::ServerInfo&) { return absl::OkStatus(); }, [this] { ++changes_; });
  }
  void Connect(const LinkOptions& options = {}) {
    Listen();
    MakeLink(options);
    link_->Connect();
    AwaitUp();
  }

  void AwaitUp() {
    RunUntil([this] { return link_->up(); });
  }

  template <class T>
  T Run(asio::awaitable<T> coroutine) {
    std::optional<T> result;
    Spawn(std::move(coroutine), &result);
    RunUntil([&] { return result.has_value(); });
    return *std::move(result);
  }
  template <class T>
  void Spawn(asio::awaitable<T> coroutine, std::optional<T>* result) {
    asio::co_spawn(context_.get_executor(), std::move(coroutine),
                   [result](const std::exception_ptr& /*error*/, T value) { *result = std::move(value); });
  }
  // Throws, and so fails the test, if nothing happens any more.
  void RunUntil(const std::function<bool()>& done) {
    while (!done()) {
      if (!context_.RunSome(Clock::now() + kLong)) throw std::runtime_error("waited in vain");
    }
  }

  const TemporaryFolder folder_;
  const std::string address_ = "unix:" + folder_.path() + "/socket";
  Server server_;
  PollingThread polling_;
  std::unique_ptr<typename Server::Service> service_;
  std::unique_ptr<RpcServer> rpc_;
  GrpcContext context_;
  std::shared_ptr<TheLink> link_;
  int changes_ = 0;
};

}  // namespace outrider
