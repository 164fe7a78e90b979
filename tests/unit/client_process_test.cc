#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "bench/temporary_folder.h"
#include "client/cli/local_services.h"
#include "client/cli/process.h"

namespace outrider {
namespace {

using testing::HasSubstr;

class ChildProcessTest : public testing::Test {
 protected:
  std::unique_ptr<ChildProcess> Shell(const std::string& script) {
    auto child = ChildProcess::Spawn({"/bin/sh", "-c", script}, log_);
    EXPECT_TRUE(child.ok()) << child.status();
    return *std::move(child);
  }
  std::string Log() const {
    std::ifstream file(log_);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void WaitForLog(const std::string& text) const {
    while (Log().find(text) == std::string::npos) std::this_thread::yield();
  }

  const TemporaryFolder folder_;
  const std::string log_ = folder_.path() + "/child.log";
};

TEST_F(ChildProcessTest, WritesBothStreamsIntoTheLog) {
  auto child = Shell("echo out; echo err >&2; exit 3");
  ASSERT_TRUE(child->WaitEnded(absl::Seconds(30)));
  EXPECT_EQ(Log(), "out\nerr\n");
  EXPECT_EQ(child->HowItEnded(), "exit status 3");
}

TEST_F(ChildProcessTest, SaysWhichSignalEndedIt) {
  auto child = Shell("kill -9 $$");
  ASSERT_TRUE(child->WaitEnded(absl::Seconds(30)));
  EXPECT_THAT(child->HowItEnded(), HasSubstr("signal 9"));
}

TEST_F(ChildProcessTest, TakesSignalsThatWeBlock) {
  Signals signals;
  auto child = Shell("echo ready; exec sleep 1000");
  WaitForLog("ready");
  child->Signal(SIGTERM);
  EXPECT_TRUE(child->WaitEnded(absl::Seconds(30)));
}

TEST_F(ChildProcessTest, DoesNotOutliveItsObject) {
  auto child = Shell("trap '' TERM; echo $$; while :; do sleep 1000; done");
  WaitForLog("\n");
  const pid_t pid = std::stoi(Log());
  child->Signal(SIGTERM);
  EXPECT_FALSE(child->WaitEnded(absl::Milliseconds(20)));
  child.reset();
  EXPECT_EQ(kill(pid, 0), -1);
}

TEST_F(ChildProcessTest, NamesAProgramThatIsNotThere) {
  const auto child = ChildProcess::Spawn({"/bin/no-such-program"}, log_);
  EXPECT_EQ(child.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(child.status().message()), HasSubstr("no-such-program"));
}

TEST(Signals, ComeOutOfWaitInsteadOfEndingTheProcess) {
  Signals signals;
  while (signals.Wait(absl::ZeroDuration()) == SIGCHLD) {  // from children of other tests
  }
  kill(getpid(), SIGTERM);
  EXPECT_EQ(signals.Wait(absl::Seconds(30)), SIGTERM);
  EXPECT_EQ(signals.Wait(absl::ZeroDuration()), 0);
}

TEST(Signals, WakeEndsAWait) {
  Signals signals;
  std::thread other([&signals] { signals.Wake(); });
  while (signals.Wait() == SIGCHLD) {
  }
  other.join();
}

TEST(ReasonInLog, IsTheLastErrorOfALogInJson) {
  EXPECT_EQ(ReasonInLog("{\"level\":\"info\",\"event\":\"x\"}\n"
                        "{\"level\":\"error\",\"event\":\"cannot start\",\"error\":\"no weights\"}\n"
                        "{\"level\":\"info\",\"event\":\"stopped\"}\n"),
            "no weights");
}

TEST(ReasonInLog, IsOtherwiseTheLastLinesThatAreNoEvents) {
  EXPECT_EQ(ReasonInLog("1\n2\n{\"level\":\"info\"}\n3\n4\n5\n6\n7\n"), "3\n4\n5\n6\n7");
  EXPECT_EQ(ReasonInLog("{\"level\":\"info\",\"event\":\"serving\"}\n"), "");
}

}  // namespace
}  // namespace outrider
