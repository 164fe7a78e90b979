#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "bench/temporary_folder.h"
#include "client/cli/local_services.h"

namespace outrider {
namespace {

using testing::HasSubstr;

TEST(ListenAddress, OfAllInterfacesIsCalledOnLoopback) {
  EXPECT_EQ(ToCall("0.0.0.0:7070"), "127.0.0.1:7070");
  EXPECT_EQ(ToCall("[::]:7070"), "[::1]:7070");
  EXPECT_EQ(ToCall("10.0.0.1:7070"), "10.0.0.1:7070");
  EXPECT_EQ(ToCall("unix:a:0"), "unix:a:0");
  EXPECT_EQ(ToCall(""), "");
}

// The result of the check for addresses whose flags are --0, --1 and so on.
std::string Problem(const std::vector<std::string>& addresses) {
  static constexpr const char* kFlags[] = {"--0", "--1", "--2", "--3"};
  std::vector<ListenFlag> flags;
  for (const std::string& address : addresses) flags.push_back({kFlags[flags.size()], address});
  return std::string(CheckListenFlags(flags).message());
}

TEST(ListenAddress, IsFoundToBeFree) {
  const TemporaryFolder folder;
  EXPECT_EQ(Problem({"127.0.0.1:0", "", "0.0.0.0:0", "unix:" + folder.path() + "/a.sock"}), "");
}

TEST(ListenAddress, ThatCannotBeHadIsNamedWithItsFlag) {
  EXPECT_THAT(Problem({"127.0.0.1:0", "192.0.2.1:0"}), HasSubstr("--1: cannot listen on 192.0.2.1:0: "));
  EXPECT_THAT(Problem({"no-such-host.invalid:1"}),
              HasSubstr("--0: cannot listen on no-such-host.invalid:1: "));
  EXPECT_EQ(Problem({"unix:/no/such/a.sock"}),
            "--0: cannot listen on unix:/no/such/a.sock: no folder /no/such");
  EXPECT_THAT(Problem({"unix:" + std::string(108, 'a')}), HasSubstr("longer than 107 bytes"));
}

}  // namespace
}  // namespace outrider
