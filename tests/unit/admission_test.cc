#include "coordinator/api/admission.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/error.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;

TEST(Admission, LetsInAsManySamplesAsThereIsRoomFor) {
  Admission admission(4);
  const auto first = admission.Enter(3, nullptr);
  ASSERT_TRUE(first.ok());
  const absl::Status refused = admission.Enter(2, nullptr).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused), "QUEUE_FULL");
  EXPECT_GT(RetryDelay(refused), absl::ZeroDuration());
  EXPECT_TRUE(admission.Enter(1, nullptr).ok());
  EXPECT_EQ(admission.running(), 1u) << "the second has given its ticket back";
}

TEST(Admission, ATicketThatGoesMakesRoom) {
  Admission admission(4);
  auto first = admission.Enter(4, nullptr);
  EXPECT_FALSE(admission.Enter(1, nullptr).ok());
  first->reset();
  EXPECT_EQ(admission.running(), 0u);
  EXPECT_TRUE(admission.Enter(4, nullptr).ok());
}

TEST(Admission, OnceClosedItSaysThatTheProcessEnds) {
  Admission admission(4);
  EXPECT_TRUE(admission.CheckOpen().ok());
  admission.Close();
  EXPECT_EQ(admission.CheckOpen().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(admission.CheckOpen()), "DRAINING");
}

TEST(Admission, EndsTheCallsInProgressAndNoOthers) {
  Admission admission(4);
  std::vector<std::string> ended;
  const auto note = [&ended](const char* name) {
    return [&ended, name](const absl::Status& reason) {
      ended.push_back(absl::StrCat(name, " ", ReasonOf(reason)));
    };
  };
  const auto running = admission.Enter(1, note("running"));
  admission.Enter(1, note("over")).value().reset();
  admission.EndAll();
  EXPECT_THAT(ended, ElementsAre("running DRAINING"));
}

}  // namespace
}  // namespace outrider
