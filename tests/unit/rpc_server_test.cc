#include "common/rpc/server.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

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
  EXPECT_GT(CallbackThreads(), 0);
}

}  // namespace
}  // namespace outrider
