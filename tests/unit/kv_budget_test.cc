#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "common/serve/served_model.h"

namespace outrider {
namespace {

TEST(KvBudget, GivesEachModelAsManyBlocksOfTheLeastThatWasFree) {
  KvBudget budget(2, 0.5);
  std::future<double> large =
      std::async(std::launch::async, [&] { return budget.PoolBytes(/*free_bytes=*/5000, 30); });
  // 500 bytes are 12 blocks of 30 and of 10.
  EXPECT_EQ(budget.PoolBytes(/*free_bytes=*/1000, 10), 120);
  EXPECT_EQ(large.get(), 360);
}

TEST(KvBudget, NobodyGetsAnythingBeforeAllHaveAsked) {
  KvBudget budget(3, 1);
  std::future<double> first = std::async(std::launch::async, [&] { return budget.PoolBytes(100, 1); });
  std::future<double> second = std::async(std::launch::async, [&] { return budget.PoolBytes(100, 1); });
  EXPECT_EQ(first.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  EXPECT_EQ(second.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  EXPECT_EQ(budget.PoolBytes(100, 2), 50);
  EXPECT_EQ(first.get() + second.get(), 50);
}

TEST(KvBudget, WhereNotOneBlockFitsNobodyGetsAny) {
  KvBudget budget(1, 0.3);
  EXPECT_EQ(budget.PoolBytes(100, 64), 0);
}

}  // namespace
}  // namespace outrider
