#include "coordinator/admission/admission.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace outrider {
namespace {

using ::testing::ElementsAre;

struct Named {
  std::string name;
};

// The names in the order in which they are served.
std::vector<std::string> Drain(FairQueue<Named>& queue) {
  std::vector<std::string> order;
  while (const Named* next = queue.Next()) {
    order.push_back(next->name);
    queue.Pop();
  }
  return order;
}

TEST(FairQueue, ClientsTakeTurnsHoweverManyRequestsEachHas) {
  std::vector<Named> requests = {{"a1"}, {"a2"}, {"a3"}, {"a4"}, {"b1"}, {"c1"}, {"c2"}};
  FairQueue<Named> queue;
  for (Named& request : requests) queue.Push(request.name.substr(0, 1), 1, &request);
  EXPECT_EQ(queue.size(), 7u);
  EXPECT_EQ(queue.size_of("a"), 4u);
  EXPECT_THAT(Drain(queue), ElementsAre("a1", "b1", "c1", "a2", "c2", "a3", "a4"));
  EXPECT_EQ(queue.size(), 0u);
}

TEST(FairQueue, ANewClientWaitsForOneRequestOfEachOther) {
  std::vector<Named> many(1000, {"many"});
  FairQueue<Named> queue;
  for (Named& request : many) queue.Push("many", 1, &request);
  queue.Next();
  queue.Pop();
  Named one{"one"};
  queue.Push("one", 1, &one);
  EXPECT_EQ(queue.Next()->name, "many");
  queue.Pop();
  EXPECT_EQ(queue.Next()->name, "one");
}

TEST(FairQueue, ARequestThatCostsMoreTakesMoreTurns) {
  std::vector<Named> requests = {{"big"}, {"s1"}, {"s2"}, {"s3"}, {"s4"}};
  FairQueue<Named> queue;
  queue.Push("big", 3, &requests[0]);
  for (int i = 1; i <= 4; ++i) queue.Push("small", 1, &requests[static_cast<size_t>(i)]);
  EXPECT_THAT(Drain(queue), ElementsAre("s1", "s2", "big", "s3", "s4"));
}

TEST(FairQueue, WhoseTurnItIsDoesNotChangeByAsking) {
  std::vector<Named> requests = {{"big"}, {"small"}};
  FairQueue<Named> queue;
  queue.Push("big", 2, &requests[0]);
  queue.Push("small", 1, &requests[1]);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(queue.Next()->name, "small");
  EXPECT_THAT(Drain(queue), ElementsAre("small", "big"));
}

TEST(FairQueue, WhoGoesAwayTakesNobodysTurn) {
  std::vector<Named> requests = {{"a1"}, {"a2"}, {"b1"}, {"b2"}};
  FairQueue<Named> queue;
  for (Named& request : requests) queue.Push(request.name.substr(0, 1), 1, &request);
  queue.Remove(&requests[0]);
  queue.Remove(&requests[0]);
  EXPECT_EQ(queue.size(), 3u);
  EXPECT_THAT(Drain(queue), ElementsAre("a2", "b1", "b2"));
  queue.Push("a", 1, &requests[0]);
  queue.Remove(&requests[0]);
  EXPECT_EQ(queue.Next(), nullptr);
}

}  // namespace
}  // namespace outrider
