// DNS names as addresses.
#include "coordinator/servers/dns_name.h"

#include <gmock/gmock.h>

namespace outrider {
namespace {

TEST(DnsName, IsReadAsGrpcWritesIt) {
  const auto name = ParseDnsName("dns:///targets.example:7072");
  ASSERT_TRUE(name.ok() && *name);
  EXPECT_EQ((*name)->server, "");
  EXPECT_EQ((*name)->host, "targets.example");
  EXPECT_EQ((*name)->port, "7072");
  const auto with_server = ParseDnsName("dns://127.0.0.1:53/targets.example:7072");
  ASSERT_TRUE(with_server.ok() && *with_server);
  EXPECT_EQ((*with_server)->server, "127.0.0.1:53");
  EXPECT_EQ((*with_server)->host, "targets.example");
}

TEST(DnsName, OtherAddressesAreOneServer) {
  for (const char* address : {"127.0.0.1:7072", "targets.example:7072", "unix:/run/socket", "[::1]:7072"}) {
    const auto name = ParseDnsName(address);
    ASSERT_TRUE(name.ok());
    EXPECT_FALSE(*name) << address;
  }
}

TEST(DnsName, HasAHostAndAPort) {
  for (const char* address :
       {"dns://", "dns:///", "dns:///host", "dns:///host:", "dns:///:7072", "dns://host:7072"}) {
    EXPECT_EQ(ParseDnsName(address).status().code(), absl::StatusCode::kInvalidArgument) << address;
  }
}

TEST(DnsName, AnAddressResolvesToItself) {
  EXPECT_THAT(Resolve({.server = "", .host = "127.0.0.1", .port = "7072"}).value(),
              testing::ElementsAre("127.0.0.1:7072"));
  EXPECT_THAT(Resolve({.server = "", .host = "::1", .port = "7072"}).value(),
              testing::ElementsAre("[::1]:7072"));
}

TEST(DnsName, ANameServerThatIsNotThereIsAnError) {
  const auto addresses = Resolve({.server = "127.0.0.1:1", .host = "targets.example", .port = "7072"});
  EXPECT_EQ(addresses.status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace outrider
