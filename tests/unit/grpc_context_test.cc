// Where the coordinator's coroutines run, and their timers.
#include "coordinator/link/grpc_context.h"

#include <gmock/gmock.h>

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "coordinator/link/event.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;

// Only a guard against hanging.
constexpr auto kLong = std::chrono::seconds(60);

asio::awaitable<void> Await(Event& event, Clock::time_point deadline, std::function<void()> then) {
  co_await event.Wait(deadline);
  then();
}

TEST(GrpcContext, RunsWhatItIsGivenFromAnotherThread) {
  GrpcContext context;
  std::thread::id ran;
  std::thread other([&] {
    // The other one waits by now, or will.
    asio::post(context.get_executor(), [&ran] { ran = std::this_thread::get_id(); });
  });
  EXPECT_TRUE(context.RunSome(Clock::now() + kLong));
  EXPECT_EQ(ran, std::this_thread::get_id());
  other.join();
  EXPECT_FALSE(context.RunSome(Clock::now())) << "there is nothing left";
}

TEST(GrpcContext, AWaitEndsWhenItIsNotifiedOrAtItsDeadlineTheEarliestFirst) {
  GrpcContext context;
  const auto executor = context.get_executor();
  Event notified(executor), late(executor), early(executor);
  std::vector<std::string> log;
  const auto start = [&](Event& event, Clock::time_point deadline, const char* name) {
    asio::co_spawn(executor, Await(event, deadline, [&log, name] { log.push_back(name); }), asio::detached);
  };
  const Clock::time_point now = Clock::now();
  start(late, now + std::chrono::milliseconds(20), "late");
  start(early, now + std::chrono::milliseconds(10), "early");
  start(notified, Clock::time_point::max(), "notified");
  while (context.RunSome(now)) continue;
  EXPECT_THAT(log, ElementsAre());
  notified.Notify();
  late.Notify();
  start(late, now + std::chrono::milliseconds(20), "late again");
  while (log.size() < 4 && context.RunSome(Clock::now() + kLong)) continue;
  EXPECT_THAT(log, ElementsAre("notified", "late", "early", "late again"));
  EXPECT_GE(Clock::now(), now + std::chrono::milliseconds(20));
}

TEST(GrpcContext, AFunctionIsToldOfATimerOnTheThreadThatRunsTheContext) {
  GrpcContext context;
  GrpcTimer timer(context.get_executor());
  std::thread::id told;
  timer.expires_after({});
  timer.async_wait([&](const boost::system::error_code& /*error*/) { told = std::this_thread::get_id(); });
  EXPECT_TRUE(context.RunSome(Clock::now() + kLong));
  EXPECT_EQ(told, std::this_thread::get_id());
}

TEST(GrpcContext, CoroutinesThatWaitAreDestroyedWithIt) {
  auto context = std::make_unique<GrpcContext>();
  const auto alive = std::make_shared<bool>();
  asio::co_spawn(
      context->get_executor(),
      [alive]() -> asio::awaitable<void> {
        Event never(co_await asio::this_coro::executor);
        co_await never.Wait();
      },
      asio::detached);
  context->RunSome(Clock::now());
  EXPECT_GT(alive.use_count(), 1);
  context = nullptr;
  EXPECT_EQ(alive.use_count(), 1);
}

}  // namespace
}  // namespace outrider
