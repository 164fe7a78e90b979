#include "common/rpc/address.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

TEST(Address, IsAHostWithAPortOrAPath) {
  for (const char* address : {"127.0.0.1:7070", "localhost:0", "[::1]:65535", "some.host:1"}) {
    EXPECT_TRUE(ParseHostPort(address)) << address;
    EXPECT_TRUE(CheckListenAddress(address).ok()) << address;
  }
  for (const char* address : {"", "7070", "host", "host:", ":7070", "host:65536", "host:99999", "host:-1",
                              "host:http", "::1:7070", "[]:1", "unix:"}) {
    EXPECT_FALSE(ParseHostPort(address)) << address;
    EXPECT_EQ(CheckListenAddress(address).code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_EQ(CheckServerAddress(address).code(), absl::StatusCode::kInvalidArgument) << address;
  }
  EXPECT_TRUE(CheckListenAddress("unix:a.sock").ok());
}

TEST(Address, IsTakenApart) {
  const auto parts = ParseHostPort("[::1]:70");
  EXPECT_EQ(parts->host, "::1");
  EXPECT_EQ(parts->port, 70);
}

TEST(Address, OfAServerHasAPortThatIsThereOrAScheme) {
  for (const char* address :
       {"127.0.0.1:7070", "[::1]:1", "unix:a.sock", "dns:///host:1", "ipv4:127.0.0.1:1"})
    EXPECT_TRUE(CheckServerAddress(address).ok()) << address;
  for (const char* address : {"127.0.0.1:0", "http://127.0.0.1:1/", "http://host:1"})
    EXPECT_FALSE(CheckServerAddress(address).ok()) << address;
}

}  // namespace
}  // namespace outrider
