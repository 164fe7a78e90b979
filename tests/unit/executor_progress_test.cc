#include "coordinator/link/executor_progress.h"

#include <gtest/gtest.h>

#include "coordinator/link/grpc_context.h"

namespace outrider {
namespace {

TEST(ExecutorIsStuck, UntilItComesToItsTask) {
  GrpcContext context;
  const std::function<bool()> stuck = ExecutorIsStuck(context.get_executor());
  EXPECT_FALSE(stuck()) << "it had nothing to do";
  EXPECT_TRUE(stuck());
  EXPECT_TRUE(stuck());
  context.RunSome(Clock::now());
  EXPECT_FALSE(stuck());
  context.RunSome(Clock::now());
  EXPECT_FALSE(stuck());
}

}  // namespace
}  // namespace outrider
