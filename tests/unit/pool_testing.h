// Pools of fake servers that answer as a test tells them.
#pragma once

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "coordinator/pools.h"
#include "coordinator/servers/server_pool.h"
#include "tests/unit/link_testing.h"

namespace outrider {

// A pool of one server, whose link is `link_`.
template <class Server>
class PoolFixture : public LinkFixture<Server> {
 protected:
  using ThePool = ServerPool<typename Server::Protocol>;

  void MakeLink(LinkOptions options = {}) override { MakePool(options, {this->address_}); }
  void MakePool(LinkOptions options, std::vector<std::string> addresses) {
    options.credentials = grpc::InsecureChannelCredentials();
    auto pool = ThePool::Create(
        this->context_, {.link = options, .addresses = std::move(addresses)},
        [](const v1::ServerInfo&) { return absl::OkStatus(); }, [this] { ++this->changes_; });
    pool_ = *std::move(pool);
    this->link_ = pool_->servers().front()->link;
  }

  std::unique_ptr<ThePool> pool_;
};

// A target with a socket of its own.
struct RunningTarget {
  RunningTarget(const std::string& folder, int number)
      : address("unix:" + folder + "/" + std::to_string(number)) {
    fake.info.set_boot_id(static_cast<uint64_t>(number));
    fake.info.set_model("target");
    fake.info.set_weights_hash(1);
    fake.info.set_block_size(16);
    fake.info.set_kv_blocks(100);
  }
  void Listen() {
    service = std::make_unique<FakeTarget::Service>(fake);
    auto server = RpcServer::Start(address, {}, {service.get()}, polling.poller());
    ASSERT_TRUE(server.ok()) << server.status();
    rpc = *std::move(server);
    service->Serve(*rpc);
  }

  const std::string address;
  FakeTarget fake;
  PollingThread polling;
  std::unique_ptr<FakeTarget::Service> service;
  std::unique_ptr<RpcServer> rpc;
};

// A pool of RunningTargets, which are as alike as a pool requires unless a test makes them differ.
class TargetPoolFixture : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { grpc_init(); }
  static void TearDownTestSuite() { grpc_shutdown(); }
  void TearDown() override {
    if (pool_ == nullptr) return;
    pool_->Stop();
    while (!pool_->stopped()) context_.RunSome(Clock::time_point::max());
  }

  RunningTarget& Start() {
    running_.push_back(
        std::make_unique<RunningTarget>(folder_.path(), static_cast<int>(running_.size()) + 1));
    running_.back()->Listen();
    return *running_.back();
  }
  void StartTwo() {
    Start();
    Start();
    Connect({Address(0), Address(1)});
    AwaitUp(2);
  }
  std::string Address(size_t i) const { return running_[i]->address; }
  void Connect(std::vector<std::string> addresses) {
    PoolOptions options{.link = {.credentials = grpc::InsecureChannelCredentials()},
                        .addresses = std::move(addresses),
                        .resolve_interval = std::chrono::milliseconds(1),
                        .resolvers = context_.get_executor(),
                        .resolve = [this](const DnsName&) { return resolved_; }};
    auto pool = TargetPool::Create(
        context_, std::move(options),
        [this](const v1::ServerInfo& info) {
          const absl::Status status = CheckWeights(info, pool_->info());
          return status.ok() ? CheckNumerics(info, pool_->info()) : status;
        },
        [] {});
    ASSERT_TRUE(pool.ok()) << pool.status();
    pool_ = *std::move(pool);
    pool_->Connect();
  }
  void RunUntil(const std::function<bool()>& done) {
    while (!done()) {
      if (!context_.RunSome(Clock::now() + kLong)) throw std::runtime_error("waited in vain");
    }
  }
  std::vector<std::string> Up() const {
    std::vector<std::string> up;
    for (const auto& server : pool_->servers()) {
      if (server->link->up()) up.push_back(server->address);
    }
    return up;
  }
  void AwaitUp(size_t count) {
    RunUntil([&] { return Up().size() == count; });
  }
  std::shared_ptr<TargetPool::Server> ServerAt(const std::string& address) const {
    for (const auto& server : pool_->servers()) {
      if (server->address == address) return server;
    }
    return nullptr;
  }
  std::map<std::string, v1::ServerState> States() const {
    google::protobuf::RepeatedPtrField<v1::ServerState> states;
    pool_->Describe(&states);
    std::map<std::string, v1::ServerState> by_address;
    for (const v1::ServerState& state : states) by_address[state.address()] = state;
    return by_address;
  }

  const TemporaryFolder folder_;
  std::vector<std::unique_ptr<RunningTarget>> running_;
  GrpcContext context_;
  absl::StatusOr<std::vector<std::string>> resolved_ = std::vector<std::string>();
  std::unique_ptr<TargetPool> pool_;
};

}  // namespace outrider
