#include "common/rpc/queue_poller.h"

#include <gtest/gtest.h>
#include <time.h>

#include <atomic>
#include <memory>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

namespace outrider {
namespace {

constexpr int kEvents = 20;

TEST(QueuePoller, WithoutAQueueItWaitsToBeWoken) {
  QueuePoller poller;
  poller.Poll(absl::Now() + absl::Milliseconds(1));
  poller.Wake();
  poller.Poll(absl::InfiniteFuture());
}

// A poller of a queue that no service uses. No other thread polls in its place.
class AttachedPoller : public ::testing::Test {
 protected:
  explicit AttachedPoller(absl::Duration busy_poll = absl::ZeroDuration(),
                          absl::Duration patience = absl::InfiniteDuration())
      : poller_(busy_poll, patience) {
    poller_.Attach(queue_.get());
  }
  ~AttachedPoller() override {
    server_->Shutdown();
    poller_.Detach();
  }

  grpc::ServerBuilder builder_;
  const std::unique_ptr<grpc::ServerCompletionQueue> queue_ = builder_.AddCompletionQueue();
  const std::unique_ptr<grpc::Server> server_ = builder_.BuildAndStart();
  QueuePoller poller_;
};

class BusyPoller : public AttachedPoller {
 protected:
  BusyPoller() : AttachedPoller(absl::InfiniteDuration()) {}
};

class StoodInPoller : public AttachedPoller {
 protected:
  StoodInPoller() : AttachedPoller(absl::ZeroDuration(), absl::Milliseconds(20)) {}
};

TEST_F(AttachedPoller, OnePollTellsAllThatHasEnded) {
  int told = 0;
  QueueTag tag([&](bool ok) { told += ok ? 1 : 0; });
  std::vector<grpc::Alarm> alarms(5);
  for (grpc::Alarm& alarm : alarms) alarm.Set(queue_.get(), gpr_inf_past(GPR_CLOCK_MONOTONIC), &tag);
  poller_.Poll(absl::InfiniteFuture());
  EXPECT_EQ(told, 5);
}

TEST_F(AttachedPoller, WhoWaitedActsFirstAndThenBeginsWhatMayWait) {
  int told = 0, begun = 0;
  QueueTag tag([&](bool /*ok*/) {
    ++told;
    poller_.BeginLater([&] { ++begun; });
  });
  grpc::Alarm alarm;
  alarm.Set(queue_.get(), absl::ToChronoTime(absl::Now() + absl::Milliseconds(20)), &tag);
  while (told == 0) poller_.Poll(absl::InfiniteFuture());
  EXPECT_EQ(begun, 0);
  poller_.Poll(absl::InfinitePast());
  EXPECT_EQ(begun, 1);
}

// Otherwise an engine would read only one of many messages before each step.
TEST_F(AttachedPoller, WhoFindsAnEndBeginsAtOnceWhatMayWait) {
  int begun = 0;
  QueueTag tag([&](bool /*ok*/) { poller_.BeginLater([&] { ++begun; }); });
  grpc::Alarm alarm;
  alarm.Set(queue_.get(), gpr_inf_past(GPR_CLOCK_MONOTONIC), &tag);
  absl::SleepFor(absl::Milliseconds(20));
  poller_.Poll(absl::InfiniteFuture());
  EXPECT_EQ(begun, 1);
}

TEST_F(AttachedPoller, WhoDoesNotWaitBeginsAtOnceWhatMayWait) {
  std::atomic<int> polls = 0, told_in = 0, begun_in = 0;
  QueueTag tag([&](bool /*ok*/) {
    told_in = polls.load();
    poller_.BeginLater([&] { begun_in = polls.load(); });
  });
  grpc::Alarm alarm;
  alarm.Set(queue_.get(), gpr_inf_past(GPR_CLOCK_MONOTONIC), &tag);
  while (begun_in == 0) {
    ++polls;
    poller_.Poll(absl::InfinitePast());
  }
  EXPECT_EQ(begun_in, told_in);
}

TEST_F(StoodInPoller, WhatMayWaitIsBegunForAThreadThatIsAway) {
  absl::Notification begun;
  poller_.BeginLater([&] { begun.Notify(); });
  EXPECT_TRUE(begun.WaitForNotificationWithTimeout(absl::Seconds(10)));
}

// The thread that should poll does not yet, so another polls in its place.
TEST_F(StoodInPoller, AWakeThatReachesTheWrongThreadIsPassedOn) {
  absl::Notification told;
  QueueTag tag([&](bool /*ok*/) { told.Notify(); });
  grpc::Alarm alarm;
  alarm.Set(queue_.get(), gpr_inf_past(GPR_CLOCK_MONOTONIC), &tag);
  told.WaitForNotification();
  poller_.Wake();
  poller_.Poll(absl::InfiniteFuture());
}

TEST_F(BusyPoller, LooksUntilTheDeadlineOrAnEventOrAWake) {
  poller_.Poll(absl::Now() + absl::Milliseconds(1));
  bool told = false;
  QueueTag tag([&](bool /*ok*/) { told = true; });
  grpc::Alarm alarm;
  alarm.Set(queue_.get(), absl::ToChronoTime(absl::Now() + absl::Milliseconds(5)), &tag);
  while (!told) poller_.Poll(absl::InfiniteFuture());
  poller_.Wake();
  poller_.Poll(absl::InfiniteFuture());
}

// Polls for events that come one after another. Returns the share of the time that this thread ran.
double Busy(QueuePoller& poller, grpc::CompletionQueue* queue) {
  const auto ran = [] {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return absl::DurationFromTimespec(time);
  };
  const absl::Time start = absl::Now();
  const absl::Duration before = ran();
  for (int i = 0; i < kEvents; ++i) {
    bool told = false;
    QueueTag tag([&](bool /*ok*/) { told = true; });
    grpc::Alarm alarm;
    alarm.Set(queue, absl::ToChronoTime(absl::Now() + absl::Milliseconds(10)), &tag);
    while (!told) poller.Poll(absl::InfiniteFuture());
  }
  return absl::FDivDuration(ran() - before, absl::Now() - start);
}

// A thread that wakes once in 10 ms runs for less than a hundredth of them. One that looks all the time runs
// for as long as it may.
TEST_F(AttachedPoller, SleepsBetweenEvents) { EXPECT_LT(Busy(poller_, queue_.get()), 0.03); }

TEST_F(BusyPoller, DoesNotSleepBetweenEvents) { EXPECT_GT(Busy(poller_, queue_.get()), 0.03); }

}  // namespace
}  // namespace outrider
