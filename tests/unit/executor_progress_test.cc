#include "coordinator/servers/grpc_context.h"

#include <gtest/gtest.h>

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
