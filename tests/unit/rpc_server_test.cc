#include "common/rpc/server.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace outrider {
namespace {

// How many threads of this process wait for gRPC's callbacks.
int CallbackThreads() {
  int count = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(thread.path() / "comm");
    std::string name;
    count += std::getline(file, name) && name == "nexting_thread" ? 1 : 0;
  }
  return count;
}

// Ending these threads crashes now and then.
TEST(RpcServer, LeavesTheThreadsOfCallbacksRunning) {
  for (int i = 0; i < 2; ++i) {
    const auto server = RpcServer::Start("127.0.0.1:0", {}, {});
    ASSERT_TRUE(server.ok()) << server.status();
  }
  // A thread gets its name only once it runs.
  for (int i = 0; i < 1000 && CallbackThreads() == 0; ++i) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_GT(CallbackThreads(), 0);
}

}  // namespace
}  // namespace outrider
