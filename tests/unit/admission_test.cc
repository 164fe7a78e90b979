#include "coordinator/admission/admission.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/net/asio.h"
#include "common/rpc/error.h"
#include "coordinator/servers/grpc_context.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using Ticket = std::unique_ptr<Admission::Ticket>;

class AdmissionTest : public ::testing::Test {
 protected:
  // Enters a call of one or more samples, and writes to `log_` how its waiting ends.
  Ticket Enter(Admission& admission, const std::string& client, const std::string& name, int samples = 1,
               Clock::time_point deadline = Clock::time_point::max()) {
    auto ticket = admission.Enter(client, samples, [this, name](const absl::Status& reason) {
      log_.push_back(absl::StrCat(name, " ended ", ReasonOf(reason)));
    });
    if (!ticket.ok()) {
      log_.push_back(absl::StrCat(name, " refused ", ReasonOf(ticket.status())));
      return nullptr;
    }
    asio::co_spawn(
        context_.get_executor(),
        [this, name, deadline, waiting = ticket->get()]() -> asio::awaitable<void> {
          const absl::Status status = co_await waiting->WaitForTurn(deadline);
          log_.push_back(status.ok() ? absl::StrCat(name, " runs")
                                     : absl::StrCat(name, " waits no more ", ReasonOf(status)));
        },
        asio::detached);
    Run();
    return *std::move(ticket);
  }
  void Run() {
    while (context_.RunSome(Clock::now())) continue;
  }

  GrpcContext context_;
  std::vector<std::string> log_;
};

TEST_F(AdmissionTest, LetsInAsManySamplesAsThereIsRoomForAndRefusesWhatTheQueueCannotHold) {
  Admission admission(context_.get_executor(), {.max_samples = 4, .max_waiting = 0});
  const Ticket first = Enter(admission, "a", "first", 3);
  EXPECT_EQ(Enter(admission, "a", "second", 2), nullptr);
  const absl::Status refused = admission.Enter("a", 2, nullptr).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GT(RetryDelay(refused), absl::ZeroDuration());
  EXPECT_TRUE(admission.Enter("a", 1, nullptr).ok());
  EXPECT_EQ(admission.running(), 1u) << "the last has given its ticket back";
  EXPECT_THAT(log_, ElementsAre("first runs", "second refused QUEUE_FULL"));
}

TEST_F(AdmissionTest, ATicketThatGoesLetsTheNextRun) {
  int changes = 0;
  Admission admission(context_.get_executor(), {.max_samples = 4, .max_waiting = 8}, [&] { ++changes; });
  Ticket first = Enter(admission, "a", "first", 4);
  const Ticket second = Enter(admission, "a", "second", 3), third = Enter(admission, "a", "third", 1);
  EXPECT_EQ(admission.waiting(), 2u);
  EXPECT_THAT(log_, ElementsAre("first runs"));
  first.reset();
  Run();
  EXPECT_EQ(admission.running(), 2u);
  EXPECT_EQ(admission.waiting(), 0u);
  EXPECT_EQ(changes, 4);
  EXPECT_THAT(log_, ElementsAre("first runs", "second runs", "third runs"));
}

TEST_F(AdmissionTest, NobodyOvertakesWhoWaitsForMoreRoom) {
  Admission admission(context_.get_executor(), {.max_samples = 4, .max_waiting = 8});
  Ticket first = Enter(admission, "a", "first", 2);
  const Ticket large = Enter(admission, "b", "large", 4), small = Enter(admission, "c", "small", 1);
  EXPECT_THAT(log_, ElementsAre("first runs"));
}

TEST_F(AdmissionTest, AClientWithManyRequestsDelaysAnotherByOne) {
  Admission admission(context_.get_executor(), {.max_samples = 1, .max_waiting = 1000});
  std::vector<Ticket> many;
  for (int i = 0; i < 1000; ++i) many.push_back(Enter(admission, "many", absl::StrCat("many", i)));
  const Ticket one = Enter(admission, "one", "one");
  many[0].reset();
  Run();
  many[1].reset();
  Run();
  EXPECT_THAT(log_, ElementsAre("many0 runs", "many1 runs", "one runs"));
}

TEST_F(AdmissionTest, AFullQueueOfOneClientIsNotAnothers) {
  Admission admission(context_.get_executor(), {.max_samples = 1, .max_waiting = 2});
  std::vector<Ticket> tickets;
  for (const char* name : {"a0", "a1", "a2", "a3"}) tickets.push_back(Enter(admission, "a", name));
  tickets.push_back(Enter(admission, "b", "b0"));
  EXPECT_THAT(log_, ElementsAre("a0 runs", "a3 refused QUEUE_FULL"));
  EXPECT_EQ(admission.waiting(), 3u);
  // There may be many clients, so their total is bounded too.
  for (int i = 0; i < 40; ++i) tickets.push_back(Enter(admission, absl::StrCat("client", i), "other"));
  EXPECT_EQ(admission.waiting(), 2u * Admission::kMaxWaitingClients);
}

TEST_F(AdmissionTest, WhoGoesOrIsCancelledOrRunsOutOfTimeWaitsNoMore) {
  Admission admission(context_.get_executor(), {.max_samples = 1, .max_waiting = 8});
  const Ticket running = Enter(admission, "a", "running");
  Ticket gone = Enter(admission, "a", "gone"), cancelled = Enter(admission, "a", "cancelled");
  const Ticket late = Enter(admission, "a", "late", 1, Clock::now());
  cancelled->Cancel();
  Run();
  EXPECT_THAT(log_, ElementsAre("running runs", "late waits no more DEADLINE_EXCEEDED",
                                "cancelled waits no more CANCELLED"));
  cancelled.reset();
  EXPECT_EQ(admission.waiting(), 2u);
}

TEST_F(AdmissionTest, OnceClosedNobodyBeginsAndWhoWaitedIsTold) {
  Admission admission(context_.get_executor(), {.max_samples = 1, .max_waiting = 8});
  const Ticket running = Enter(admission, "a", "running"), waiting = Enter(admission, "a", "waiting");
  admission.Close();
  Run();
  EXPECT_EQ(Enter(admission, "a", "new"), nullptr);
  EXPECT_THAT(log_, ElementsAre("running runs", "waiting waits no more DRAINING", "new refused DRAINING"));
  EXPECT_EQ(admission.running(), 1u);
}

TEST_F(AdmissionTest, EndsTheCallsInProgressAndNoOthers) {
  Admission admission(context_.get_executor(), {.max_samples = 4, .max_waiting = 8});
  const Ticket running = Enter(admission, "a", "running");
  Enter(admission, "a", "over").reset();
  admission.EndAll();
  EXPECT_THAT(log_, ElementsAre("running runs", "over runs", "running ended DRAINING"));
}

}  // namespace
}  // namespace outrider
