#include "common/spec/random.h"

#include <gtest/gtest.h>

#include <set>

namespace outrider {
namespace {

// Known answers published with Random123 (philox4x64, 10 rounds).
TEST(Random, IsPhilox4x64WithTenRounds) {
  EXPECT_EQ(RandomBits({0, 0}, {0, 0, 0, 0}),
            (std::array<uint64_t, 4>{0x16554d9eca36314c, 0xdb20fe9d672d0fdc, 0xd7e772cee186176b,
                                     0x7e68b68aec7ba23b}));
  const uint64_t ones = ~uint64_t{0};
  EXPECT_EQ(RandomBits({ones, ones}, {ones, ones, ones, ones}),
            (std::array<uint64_t, 4>{0x87b092c3013fe90b, 0x438c3c67be8d0224, 0x9cc7d7c69cd777b6,
                                     0xa09caebf594f0ba0}));
}

TEST(Random, UniformIsATopOf53BitsBelowOne) {
  EXPECT_EQ(UnitInterval(0), 0.0);
  EXPECT_EQ(UnitInterval(2047), 0.0);
  EXPECT_EQ(UnitInterval(2048), 0x1.0p-53);
  EXPECT_EQ(UnitInterval(~uint64_t{0}), 1.0 - 0x1.0p-53);
}

TEST(Random, EveryPartOfTheCounterAndTheKeyMatters) {
  const std::set<double> values = {
      Uniform({1, 2}, 3, Purpose::kDraft, 0, 5),  Uniform({9, 2}, 3, Purpose::kDraft, 0, 5),
      Uniform({1, 9}, 3, Purpose::kDraft, 0, 5),  Uniform({1, 2}, 9, Purpose::kDraft, 0, 5),
      Uniform({1, 2}, 3, Purpose::kAccept, 0, 5), Uniform({1, 2}, 3, Purpose::kDraft, 9, 5),
      Uniform({1, 2}, 3, Purpose::kDraft, 0, 9),
  };
  EXPECT_EQ(values.size(), 7u);
  EXPECT_EQ(Uniform({1, 2}, 3, Purpose::kDraft, 0, 5), Uniform({1, 2}, 3, Purpose::kDraft, 0, 5));
}

}  // namespace
}  // namespace outrider
