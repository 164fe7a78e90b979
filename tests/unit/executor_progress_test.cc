#include "coordinator/link/executor_progress.h"

#include <gtest/gtest.h>

#include "coordinator/link/asio.h"

namespace outrider {
namespace {

TEST(ExecutorIsStuck, UntilItComesToItsTask) {
  asio::io_context io;
  const std::function<bool()> stuck = ExecutorIsStuck(io.get_executor());
  EXPECT_FALSE(stuck()) << "it had nothing to do";
  EXPECT_TRUE(stuck());
  EXPECT_TRUE(stuck());
  io.poll();
  EXPECT_FALSE(stuck());
  io.restart();
  io.poll();
  EXPECT_FALSE(stuck());
}

}  // namespace
}  // namespace outrider
