#include "coordinator/api/request_context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace outrider {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

v1::RequestContext Read(const char* key, const std::string& value) {
  return ReadRequestContext({{key, value}});
}

TEST(RequestContext, TakesTheClientsNameForTheRequest) {
  EXPECT_EQ(Read("x-request-id", "order-17/b").request_id(), "order-17/b");
  EXPECT_EQ(Read("x-request-id", std::string(128, 'x')).request_id(), std::string(128, 'x'));
}

TEST(RequestContext, DrawsOneIfThereIsNoneOrItWouldSpoilALog) {
  const char* const drawn = "[0-9a-f]{32}";
  EXPECT_THAT(ReadRequestContext({}).request_id(), MatchesRegex(drawn));
  for (const std::string& bad : {std::string(), std::string("a b"), std::string("a\nb"),
                                 std::string("\xc3\xa4"), std::string(129, 'x')}) {
    EXPECT_THAT(Read("x-request-id", bad).request_id(), MatchesRegex(drawn)) << bad;
  }
  EXPECT_NE(ReadRequestContext({}).request_id(), ReadRequestContext({}).request_id());
}

TEST(RequestContext, TakesATraceparentThatIsWellFormed) {
  const std::string good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  EXPECT_EQ(Read("traceparent", good).traceparent(), good);
  for (const std::string& bad : {std::string(), good + "0", good.substr(1), "ff" + good.substr(2),
                                 std::string("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"),
                                 std::string("00-00000000000000000000000000000000-00f067aa0ba902b7-01"),
                                 std::string("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"),
                                 std::string("00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")}) {
    EXPECT_EQ(Read("traceparent", bad).traceparent(), "") << bad;
  }
}

TEST(Client, IsItsTokenHoweverTheHeaderIsWritten) {
  EXPECT_EQ(ClientWithToken("Bearer secret"), ClientWithToken("bearer  secret "));
  EXPECT_NE(ClientWithToken("Bearer secret"), ClientWithToken("Bearer Secret"));
  EXPECT_THAT(ClientWithToken("Bearer secret"), Not(HasSubstr("secret")));
}

TEST(Client, IsItsHostWhateverItsPortAndHoweverItsAddressIsWritten) {
  for (const auto& [peer, host] :
       {std::pair("ipv4:127.0.0.1:4711", "127.0.0.1"), std::pair("ipv4:127.0.0.1:4712", "::ffff:127.0.0.1"),
        std::pair("ipv6:[::1]:4711", "::1"), std::pair("ipv6:%5B2001:db8::7%5D:4711", "2001:db8::7"),
        std::pair("ipv6:%5Bfe80::1%252%5D:4711", "fe80::1%2"),
        std::pair("unix:/run/socket", "unix:/run/socket")}) {
    EXPECT_EQ(ClientAtPeer(peer), ClientAtHost(host)) << peer;
  }
  EXPECT_NE(ClientAtPeer("ipv4:127.0.0.1:4711"), ClientAtPeer("ipv4:127.0.0.2:4711"));
  EXPECT_NE(ClientAtPeer("ipv6:%5B2001:db8::7%5D:4711"), ClientAtPeer("ipv6:%5B2001:db8::8%5D:4711"));
}

TEST(CacheSalt, IsAnothersForEveryClientAndEveryKey) {
  EXPECT_EQ(CacheSalt("host:a", "key"), CacheSalt("host:a", "key"));
  EXPECT_NE(CacheSalt("host:a", "key"), CacheSalt("host:b", "key"));
  EXPECT_NE(CacheSalt("host:a", "key"), CacheSalt("host:a", "other key"));
}

}  // namespace
}  // namespace outrider
