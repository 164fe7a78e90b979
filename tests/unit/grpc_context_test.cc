// Where the coordinator's coroutines run, and their timers.
#include "coordinator/servers/grpc_context.h"

#include <gmock/gmock.h>

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "coordinator/servers/grpc_timer.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;

// Only a guard against hanging.
constexpr auto kPatience = std::chrono::seconds(60);

asio::awaitable<void> Await(Event& event, Clock::time_point deadline, std::function<void()> then) {
  co_await event.Wait(deadline);
  then();
}

TEST(GrpcContext, RunsWhatItIsGivenFromAnotherThread) {
  GrpcContext context;
  std::thread::id ran;
  std::thread other([&] {
    // The context's thread waits by now, or will.
    asio::post(context.get_executor(), [&ran] { ran = std::this_thread::get_id(); });
  });
  EXPECT_TRUE(context.RunSome(Clock::now() + kPatience));
  EXPECT_EQ(ran, std::this_thread::get_id());
  other.join();
  EXPECT_FALSE(context.RunSome(Clock::now())) << "there is nothing left";
}

TEST(GrpcContext, AWaitEndsWhenItIsNotifiedOrAtItsDeadlineTheEarliestFirst) {
  GrpcContext context;
  const auto executor = context.get_executor();
  Event first(executor), second(executor);
  std::vector<std::string> log;
  const auto start = [&](Event& event, Clock::time_point deadline, const char* name) {
    asio::co_spawn(executor, Await(event, deadline, [&log, name] { log.push_back(name); }), asio::detached);
  };
  const auto run = [&] {
    while (context.RunSome(Clock::now())) continue;
  };
  start(first, Clock::time_point::max(), "first");
  start(second, Clock::now() + kPatience, "second");
  run();
  EXPECT_THAT(log, ElementsAre());
  second.Notify();
  first.Notify();
  run();
  EXPECT_THAT(log, ElementsAre("second", "first"));

  log.clear();
  const Clock::time_point past = Clock::now() - std::chrono::milliseconds(1);
  start(first, past, "late");
  start(second, past - std::chrono::milliseconds(1), "early");
  run();
  EXPECT_THAT(log, ElementsAre("early", "late"));
  const Clock::time_point soon = Clock::now() + std::chrono::milliseconds(2);
  start(first, soon, "soon");
  while (log.size() < 3) ASSERT_TRUE(context.RunSome(Clock::now() + kPatience));
  EXPECT_GE(Clock::now(), soon);
}

TEST(GrpcContext, AFunctionIsToldOfATimerOnTheThreadThatRunsTheContext) {
  GrpcContext context;
  GrpcTimer timer(context.get_executor());
  std::thread::id told;
  timer.expires_after({});
  timer.async_wait([&](const boost::system::error_code& /*error*/) { told = std::this_thread::get_id(); });
  EXPECT_TRUE(context.RunSome(Clock::now() + kPatience));
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
