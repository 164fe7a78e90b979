// When a draft that fails is left alone, and when it is asked again.
#include "coordinator/servers/server_pool.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Clock::time_point kStart{};
// Longer than any pause, including its jitter.
constexpr auto kPause = seconds(13);

void Fail(CircuitBreaker& breaker, Clock::time_point now) {
  const auto permit = breaker.TryPass(now);
  ASSERT_NE(permit, nullptr);
  permit->Fail(now);
}

void Open(CircuitBreaker& breaker, Clock::time_point now) {
  for (int i = 0; i < CircuitBreaker::kFailures; ++i) Fail(breaker, now);
}

bool Passes(CircuitBreaker& breaker, Clock::time_point now) { return breaker.TryPass(now) != nullptr; }

TEST(CircuitBreaker, OpensAfterFailuresInARow) {
  CircuitBreaker breaker;
  Open(breaker, kStart);
  EXPECT_FALSE(Passes(breaker, kStart));
  EXPECT_FALSE(Passes(breaker, kStart + milliseconds(249)));
}

TEST(CircuitBreaker, ASuccessInBetweenKeepsItClosed) {
  CircuitBreaker breaker;
  for (int i = 0; i < 10; ++i) {
    for (int failure = 1; failure < CircuitBreaker::kFailures; ++failure) Fail(breaker, kStart);
    breaker.TryPass(kStart)->Succeed();
  }
  EXPECT_TRUE(Passes(breaker, kStart));
}

TEST(CircuitBreaker, AfterThePauseOneItemTriesAndASuccessCloses) {
  CircuitBreaker breaker;
  Open(breaker, kStart);
  const auto probe = breaker.TryPass(kStart + milliseconds(751));
  ASSERT_NE(probe, nullptr);
  EXPECT_FALSE(Passes(breaker, kStart + milliseconds(751))) << "one is on its way";
  probe->Succeed();
  EXPECT_TRUE(Passes(breaker, kStart + milliseconds(751)));
}

TEST(CircuitBreaker, ThePausesGrowWhileTheDraftKeepsFailing) {
  CircuitBreaker breaker;
  Open(breaker, kStart);
  Clock::time_point now = kStart;
  for (const int nominal : {1000, 2000, 4000, 8000, 8000}) {
    now += kPause;
    Fail(breaker, now);
    EXPECT_FALSE(Passes(breaker, now + milliseconds(nominal / 2 - 1)));
    EXPECT_TRUE(Passes(breaker, now + milliseconds(nominal * 3 / 2 + 1)));
  }
}

TEST(CircuitBreaker, AProbeThatWasGivenUpMakesRoomForAnother) {
  CircuitBreaker breaker;
  Open(breaker, kStart);
  breaker.TryPass(kStart + kPause).reset();
  EXPECT_TRUE(Passes(breaker, kStart + kPause));
}

TEST(CircuitBreaker, ANewConnectionIsClosed) {
  CircuitBreaker breaker;
  breaker.OnConnection(1);
  Open(breaker, kStart);
  breaker.OnConnection(1);
  EXPECT_FALSE(Passes(breaker, kStart));
  breaker.OnConnection(2);
  EXPECT_TRUE(Passes(breaker, kStart));
}

TEST(CircuitBreaker, WhatWasSentBeforeItChangedSaysNothingAfterwards) {
  CircuitBreaker breaker;
  const auto early_success = breaker.TryPass(kStart), early_failure = breaker.TryPass(kStart);
  Open(breaker, kStart);
  early_success->Succeed();
  EXPECT_FALSE(Passes(breaker, kStart));
  const auto probe = breaker.TryPass(kStart + kPause);
  early_failure->Fail(kStart + kPause);
  ASSERT_NE(probe, nullptr);
  probe->Succeed();
  EXPECT_TRUE(Passes(breaker, kStart + kPause));
}

}  // namespace
}  // namespace outrider
