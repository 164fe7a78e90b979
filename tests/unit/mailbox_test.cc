// The queue to the engine thread, where this thread fetches its commands itself.
#include "common/engine/mailbox.h"

#include <gmock/gmock.h>

#include <condition_variable>
#include <mutex>
#include <thread>

namespace outrider {
namespace {

using ::testing::SizeIs;

// A source that puts one release into the mailbox when it is polled and has some left, and else waits to be
// woken.
class Source {
 public:
  CommandSource functions() {
    return {.poll = [this](absl::Time deadline) { Poll(deadline); },
            .wake = [this] { Wake(); },
            .hold_answers = nullptr,
            .release_answers = nullptr};
  }
  void Give(int commands) { left_ = commands; }
  void AwaitWaiting() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_; });
  }

  Mailbox* mailbox = nullptr;
  int polls = 0;
  absl::Time last_deadline;
  int wakes = 0;

 private:
  void Poll(absl::Time deadline) {
    ++polls;
    last_deadline = deadline;
    if (left_ > 0) {
      --left_;
      return mailbox->Put([](SequenceStore&) {});
    }
    std::unique_lock lock(mutex_);
    waiting_ = true;
    changed_.notify_all();
    changed_.wait_until(lock, absl::ToChronoTime(deadline), [this] { return woken_; });
    waiting_ = woken_ = false;
  }
  void Wake() {
    std::lock_guard lock(mutex_);
    ++wakes;
    woken_ = true;
    changed_.notify_all();
  }

  int left_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool waiting_ = false;
  bool woken_ = false;
};

class MailboxTest : public ::testing::Test {
 protected:
  MailboxTest() { source_.mailbox = &mailbox_; }

  Source source_;
  Mailbox mailbox_{/*max_items=*/8, source_.functions()};
  std::vector<Command> commands_;
};

TEST_F(MailboxTest, AnIdleTakerPollsUntilThereIsACommandAndWakesNobody) {
  source_.Give(1);
  EXPECT_TRUE(mailbox_.Take(/*busy=*/false, absl::InfiniteFuture(), commands_));
  EXPECT_THAT(commands_, SizeIs(1));
  EXPECT_EQ(source_.polls, 1);
  EXPECT_EQ(source_.wakes, 0) << "the taker put it itself";
}

TEST_F(MailboxTest, WhatAnotherThreadPutsEndsThePoll) {
  std::thread other([this] {
    source_.AwaitWaiting();
    mailbox_.Put([](SequenceStore&) {});
  });
  EXPECT_TRUE(mailbox_.Take(/*busy=*/false, absl::InfiniteFuture(), commands_));
  other.join();
  EXPECT_THAT(commands_, SizeIs(1));
  EXPECT_EQ(source_.wakes, 1);
}

TEST_F(MailboxTest, StopEndsThePoll) {
  std::thread other([this] {
    source_.AwaitWaiting();
    mailbox_.Stop();
  });
  EXPECT_FALSE(mailbox_.Take(/*busy=*/false, absl::InfiniteFuture(), commands_));
  other.join();
}

TEST_F(MailboxTest, ThePollEndsAtTheDeadline) {
  EXPECT_TRUE(mailbox_.Take(/*busy=*/false, absl::Now() + absl::Milliseconds(1), commands_));
  EXPECT_THAT(commands_, SizeIs(0));
}

TEST_F(MailboxTest, ATakerSpinsForAShortTime) {
  EXPECT_TRUE(mailbox_.Take(/*busy=*/true, absl::Now() + absl::Microseconds(900), commands_));
  EXPECT_EQ(source_.last_deadline, absl::InfinitePast()) << "a poll that sleeps takes a millisecond";
  EXPECT_THAT(commands_, SizeIs(0));
}

TEST_F(MailboxTest, ABusyTakerLooksWithoutWaiting) {
  EXPECT_TRUE(mailbox_.Take(/*busy=*/true, absl::InfinitePast(), commands_));
  EXPECT_EQ(source_.polls, 1);
  EXPECT_THAT(commands_, SizeIs(0));
}

TEST_F(MailboxTest, WithCommandsAtHandATakerDoesNotWait) {
  mailbox_.Put([](SequenceStore&) {});
  EXPECT_TRUE(mailbox_.Take(/*busy=*/false, absl::InfiniteFuture(), commands_));
  EXPECT_THAT(commands_, SizeIs(1));
}

TEST_F(MailboxTest, LosesNoReleaseHoweverFewItemsMayWait) {
  for (int i = 0; i < 1000; ++i) mailbox_.Put([](SequenceStore&) {});
  EXPECT_TRUE(mailbox_.Take(/*busy=*/true, absl::InfinitePast(), commands_));
  EXPECT_THAT(commands_, SizeIs(1000));
}

TEST_F(MailboxTest, IsBoundedAllTheSame) {
  for (size_t i = 0; i < Mailbox::kMaxCommands + 10; ++i) mailbox_.Put([](SequenceStore&) {});
  EXPECT_TRUE(mailbox_.Take(/*busy=*/true, absl::InfinitePast(), commands_));
  EXPECT_THAT(commands_, SizeIs(Mailbox::kMaxCommands));
}

}  // namespace
}  // namespace outrider
