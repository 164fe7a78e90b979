// A server whose engine hangs says so in its health, and takes it back when the engine goes on.
#include "common/serve/stall_watch.h"

#include <google/protobuf/wrappers.pb.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>

#include "common/serve/served_model.h"
#include "common/serve/server_process.h"
#include "held_sampler.h"

namespace outrider {
namespace {

constexpr absl::Duration kTimeout = absl::Milliseconds(400);

// The values that a watch reports, to be waited for.
class Reports {
 public:
  void Add(bool stalled) {
    std::lock_guard lock(mutex_);
    stalled_ = stalled;
    ++count_;
    changed_.notify_all();
  }
  void Await(bool stalled) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stalled_ == stalled && count_ > 0; });
  }
  int count() {
    std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stalled_ = false;
  int count_ = 0;
};

TEST(StallWatch, NeedsAllChecksInARow) {
  std::promise<void> asked_enough;
  int calls = 0;
  Reports reports;
  {
    const StallWatch watch(
        "test", absl::Milliseconds(StallWatch::kChecks),
        [&] {
          if (++calls == 10 * StallWatch::kChecks) asked_enough.set_value();
          return calls % StallWatch::kChecks != 0;
        },
        [&](bool stalled) { reports.Add(stalled); });
    asked_enough.get_future().wait();
  }
  EXPECT_EQ(reports.count(), 0);
}

TEST(StallWatch, ReportsAStallAndItsEndOnce) {
  std::atomic<bool> stuck = true;
  Reports reports;
  {
    const StallWatch watch(
        "test", absl::Milliseconds(StallWatch::kChecks), [&] { return stuck.load(); },
        [&](bool stalled) { reports.Add(stalled); });
    reports.Await(true);
    stuck = false;
    reports.Await(false);
  }
  EXPECT_EQ(reports.count(), 2);
}

TEST(StallWatch, IsOffWithoutATimeout) {
  bool asked = false;
  {
    const StallWatch watch(
        "test", absl::ZeroDuration(), [&] { return asked = true; }, [](bool) {});
  }
  EXPECT_FALSE(asked);
}

// The status from grpc.health.v1: 1 is SERVING, 2 NOT_SERVING. Its messages have one field, as those of the
// wrappers do.
int Health(const std::string& address, const std::string& service) {
  using google::protobuf::Int32Value;
  using google::protobuf::StringValue;
  grpc::TemplatedGenericStub<StringValue, Int32Value> stub(
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  StringValue request;
  request.set_value(service);
  Int32Value response;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &request, &response,
                 [&](grpc::Status status) { done.set_value(std::move(status)); });
  const grpc::Status status = done.get_future().get();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.value();
}

TEST(StallWatch, AnEngineThatHangsIsNeitherLiveNorServing) {
  const auto hold = std::make_shared<testing::Hold>();
  const std::unique_ptr<Worker> worker = testing::StartHeldWorker(hold, {});
  const auto process = ServerProcess::Start(
      {}, {{.listen = "127.0.0.1:0", .registry = std::make_shared<prometheus::Registry>()}});
  ASSERT_TRUE(process.ok()) << process.status();
  ServerProcess& server = **process;
  server.SetServing(true);
  const auto health = [&] {
    const std::string& address = server.rpc().address();
    return std::pair(Health(address, "live"), Health(address, ""));
  };
  Reports reports;
  const StallWatch watch("engine", kTimeout, EngineIsStuck(*worker), [&](bool stalled) {
    server.ReportStall(stalled);
    reports.Add(stalled);
  });
  EXPECT_EQ(health(), std::pair(1, 1));

  std::future<testing::ShortReply> answer = testing::SendShort(*worker, testing::FirstItem(1));
  reports.Await(true);
  EXPECT_EQ(health(), std::pair(2, 2));
  server.SetServing(true);
  EXPECT_EQ(health(), std::pair(2, 2)) << "whoever says that it serves";

  hold->LetGo();
  EXPECT_TRUE(answer.get().status.ok());
  reports.Await(false);
  EXPECT_EQ(health(), std::pair(1, 1));
  EXPECT_EQ(reports.count(), 2);
}

TEST(StallWatch, AProcessIsLiveAtNoAddressWhileAnyOfItsThreadsHangs) {
  const auto process = ServerProcess::Start(
      {}, {{.listen = "127.0.0.1:0", .registry = std::make_shared<prometheus::Registry>()},
           {.listen = "127.0.0.1:0", .registry = std::make_shared<prometheus::Registry>()}});
  ASSERT_TRUE(process.ok()) << process.status();
  ServerProcess& server = **process;
  const auto health = [&](const std::string& service) {
    return std::pair(Health(server.rpc(0).address(), service), Health(server.rpc(1).address(), service));
  };
  EXPECT_EQ(health(""), std::pair(2, 2));
  server.SetServing(true);
  EXPECT_EQ(health(""), std::pair(1, 1));
  for (const bool hangs : {true, true, false}) {
    server.ReportStall(hangs);
    EXPECT_EQ(health("live"), std::pair(2, 2));
    EXPECT_EQ(health(""), std::pair(2, 2));
  }
  server.ReportStall(false);
  EXPECT_EQ(health("live"), std::pair(1, 1));
  EXPECT_EQ(health(""), std::pair(1, 1));
}

}  // namespace
}  // namespace outrider
