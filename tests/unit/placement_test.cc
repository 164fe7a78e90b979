// Which server of a pool a sequence goes to.
#include "coordinator/servers/server_pool.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <vector>

namespace outrider {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::Le;

std::vector<ServerView> Servers(std::vector<int> sequences) {
  std::vector<ServerView> servers;
  for (int count : sequences) {
    servers.push_back({.id = 0x9e3779b97f4a7c15 * (servers.size() + 1), .sequences = count});
  }
  return servers;
}

// The number of sequences on each of `server_count` equal servers, after requests whose affinities are given
// by a function of their number.
template <class Affinity>
std::vector<int> Spread(size_t server_count, uint64_t requests, Affinity affinity) {
  std::vector<ServerView> servers = Servers(std::vector<int>(server_count));
  for (uint64_t i = 0; i < requests; ++i) {
    ++servers[static_cast<size_t>(Place(servers, {.affinity = affinity(i), .tie = i}))].sequences;
  }
  std::vector<int> spread;
  for (const ServerView& server : servers) spread.push_back(server.sequences);
  return spread;
}

TEST(Placement, TakesTheLeastLoadedServer) {
  for (uint64_t tie = 0; tie < 20; ++tie) {
    EXPECT_EQ(Place(Servers({3, 2, 5}), {.tie = tie}), 1);
    EXPECT_EQ(Place(Servers({8, 6, 7}), {.affinity = tie + 1}), 1);
  }
}

TEST(Placement, CountsWhatOtherCoordinatorsHaveThere) {
  std::vector<ServerView> servers = Servers({2, 5});
  EXPECT_EQ(Place(servers, {}), 0);
  servers[0].others = 4.5;
  EXPECT_EQ(Place(servers, {}), 1);
}

TEST(Placement, AServerOfUnknownLoadIsTakenToBeAsBusyAsTheOthers) {
  std::vector<ServerView> servers = Servers({1, 1, 0});
  servers[0].others = 6;
  servers[1].others = 2;
  servers[2].others = kUnknownLoad;
  for (uint64_t tie = 0; tie < 20; ++tie) {
    EXPECT_EQ(Place(servers, {.tie = tie}), 1) << "3 against 7, and 4 on the mean";
    EXPECT_EQ(Place(Servers({2, 1}), {.tie = tie}), 1);
  }
  servers[1].others = 5;
  EXPECT_EQ(Place(servers, {}), 2);
}

TEST(Placement, SpreadsWhatIsEquallyWellOffEverywhere) {
  std::set<int> taken;
  for (uint64_t tie = 0; tie < 100; ++tie) taken.insert(Place(Servers({0, 0, 0, 0}), {.tie = tie}));
  EXPECT_THAT(taken, ElementsAre(0, 1, 2, 3));
}

TEST(Placement, NoServerGetsMuchMoreThanItsShareEvenOfOnePrompt) {
  for (size_t count : {2, 3, 4, 5, 8, 16}) {
    const double share = 64.0 / static_cast<double>(count);
    const auto even = AllOf(Ge(static_cast<int>(std::min(0.9 * share, share - 0.99) + 0.999)),
                            Le(static_cast<int>(std::max(1.1 * share, share + 0.99))));
    EXPECT_THAT(Spread(count, 64, [](uint64_t) { return uint64_t{7}; }), Each(even));
    EXPECT_THAT(Spread(count, 64, [](uint64_t i) { return i + 1; }), Each(even));
    EXPECT_THAT(Spread(count, 64, [](uint64_t) { return uint64_t{0}; }), Each(even));
  }
}

TEST(Placement, AffinityTakesTheSameServerWhileThatCostsLittle) {
  const PlacementRequest request{.affinity = 7};
  std::vector<ServerView> servers = Servers({0, 0, 0});
  const int home = Place(servers, request);
  auto& at_home = servers[static_cast<size_t>(home)];
  at_home.sequences = 1;
  EXPECT_EQ(Place(servers, request), home) << "one more than the others";
  at_home.sequences = 2;
  EXPECT_NE(Place(servers, request), home) << "two more";
  for (ServerView& server : servers) server.sequences = kCheapSequences - 1;
  at_home.sequences = kCheapSequences;
  EXPECT_NE(Place(servers, request), home) << "one more, and each counts";
}

TEST(Placement, ManyPromptsHaveTheirHomesOnAllServers) {
  std::vector<int> homes(4);
  for (uint64_t prompt = 1; prompt <= 4000; ++prompt) {
    ++homes[static_cast<size_t>(Place(Servers({0, 0, 0, 0}), {.affinity = prompt}))];
  }
  EXPECT_THAT(homes, Each(AllOf(Ge(900), Le(1100))));
}

TEST(Placement, OnlyThePromptsOfAServerThatGoesMove) {
  const std::vector<ServerView> all = Servers({0, 0, 0, 0});
  std::vector<ServerView> fewer = all;
  fewer[2].usable = false;
  int moved = 0;
  for (uint64_t prompt = 1; prompt <= 1000; ++prompt) {
    const int before = Place(all, {.affinity = prompt});
    const int after = Place(fewer, {.affinity = prompt});
    EXPECT_NE(after, 2);
    if (before == 2) {
      ++moved;
    } else {
      EXPECT_EQ(after, before);
    }
  }
  EXPECT_GT(moved, 0);
}

TEST(Placement, LeavesOutServersThatCannotTakeIt) {
  std::vector<ServerView> servers = Servers({0, 9, 9});
  servers[0].usable = false;
  servers[1].going_away = true;
  EXPECT_EQ(Place(servers, {}), 2);
  servers[2].usable = false;
  EXPECT_EQ(Place(servers, {}), -1);
  EXPECT_EQ(Place({}, {}), -1);
}

TEST(Placement, AServerThatFailedIsTakenOnlyIfItIsTheLast) {
  EXPECT_EQ(Place(Servers({0, 9}), {.avoid = 0}), 1);
  EXPECT_EQ(Place(Servers({0, 0}), {.affinity = 7, .avoid = 0}), 1);
  EXPECT_EQ(Place(Servers({0, 0}), {.affinity = 7, .avoid = 1}), 0);
  EXPECT_EQ(Place(Servers({3}), {.avoid = 0}), 0);
}

TEST(Placement, PromptsThatBeginAlikeHaveTheSameAffinity) {
  std::vector<TokenId> one(40, 5), other(40, 5), different(40, 5);
  other[32] = 6;
  different[31] = 6;
  EXPECT_EQ(PromptAffinity(one, 16), PromptAffinity(other, 16));
  EXPECT_NE(PromptAffinity(one, 16), PromptAffinity(different, 16));
  EXPECT_NE(PromptAffinity(one, 16), 0u);
  one.resize(31);
  EXPECT_EQ(PromptAffinity(one, 16), 0u) << "too short to have a home";
}

}  // namespace
}  // namespace outrider
