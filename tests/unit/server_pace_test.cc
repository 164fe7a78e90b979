// How busy a server is, and how long it may be silent.
#include "coordinator/servers/link_call.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(ServerPace, WhatIsNotOursIsOthers) {
  ServerPace pace;
  pace.ObserveLoad(9, 4);
  EXPECT_EQ(pace.load(), 9u);
  EXPECT_EQ(pace.load_of_others(), 5);
  pace.ObserveLoad(1, 4);
  EXPECT_GT(pace.load_of_others().value(), 0) << "a mean of some messages";
  EXPECT_LT(pace.load_of_others().value(), 5);
  pace.ForgetLoad();
  EXPECT_FALSE(pace.load_of_others());
}

TEST(ServerPace, HowLongAServerMayBeSilentIsNotKnownBeforeItAnswered) {
  EXPECT_FALSE(ServerPace().LongestSilence(100));
}

TEST(ServerPace, AServerMayBeSilentForSeveralTimesWhatItsRowsTake) {
  ServerPace fast, slow;
  fast.ObserveAnswer(milliseconds(1), 10);
  EXPECT_EQ(*fast.LongestSilence(6), ServerPace::kLeastSilence);
  slow.ObserveAnswer(milliseconds(1000), 10);
  const auto usual = milliseconds(100) * ServerPace::kSilenceFactor;
  EXPECT_NEAR(Seconds(*slow.LongestSilence(0)), Seconds(usual * ServerPace::kRowsOfOthers), 0.01);
  EXPECT_NEAR(Seconds(*slow.LongestSilence(8192) - *slow.LongestSilence(0)), Seconds(usual * 8192), 0.01);
}

}  // namespace
}  // namespace outrider
