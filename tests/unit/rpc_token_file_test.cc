#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "bench/temporary_folder.h"
#include "common/rpc/credentials.h"

namespace outrider {
namespace {

class TokenFileTest : public testing::Test {
 protected:
  TokenFileTest() { Write("first\n\n  second \n"); }

  // Each write sets a new modification time, however quickly writes follow each other.
  void Write(const std::string& text) {
    std::ofstream(path_) << text;
    std::filesystem::last_write_time(path_, time_ += std::chrono::seconds(1));
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/tokens";
  std::filesystem::file_time_type time_ = std::filesystem::file_time_type::clock::now();
};

TEST_F(TokenFileTest, AllowsEachOfItsTokensAndNothingElse) {
  auto file = TokenFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->Check("Bearer first").ok());
  EXPECT_TRUE((*file)->Check("Bearer second").ok());
  EXPECT_TRUE((*file)->Check("bearer  first ").ok())
      << "RFC 9110: a scheme has no case, values may have spaces";
  for (const char* wrong : {"", "first", "Bearer ", "Bearer firs", "Bearer first second", "Bearer firsT",
                            "Bearerfirst", "Basic first", "Bearer first\nsecond"}) {
    EXPECT_FALSE((*file)->Check(wrong).ok()) << wrong;
  }
  EXPECT_EQ((*file)->Authorization(), "Bearer first");
}

TEST_F(TokenFileTest, FollowsTheFile) {
  auto file = TokenFile::Open(path_);
  ASSERT_TRUE(file.ok());
  Write("third\n");
  EXPECT_FALSE((*file)->Check("Bearer first").ok());
  EXPECT_TRUE((*file)->Check("Bearer third").ok());
  // A file that is being written or was emptied by mistake changes nothing: it neither locks clients out nor
  // lets others in.
  Write("\n");
  EXPECT_TRUE((*file)->Check("Bearer third").ok());
  EXPECT_FALSE((*file)->Check("Bearer ").ok());
  std::filesystem::remove(path_);
  EXPECT_TRUE((*file)->Check("Bearer third").ok());
}

TEST_F(TokenFileTest, NamesTheFileThatIsNoUse) {
  Write(" \n");
  EXPECT_EQ(TokenFile::Open(path_).status().message(), path_ + ": holds no token");
  EXPECT_EQ(TokenFile::Open(path_ + "x").status().message(), path_ + "x: cannot be read");
}

TEST_F(TokenFileTest, SecurityThatDoesNotFitTogetherIsRefused) {
  EXPECT_FALSE(MakeServerCredentials({.token_file = path_}).ok());
  EXPECT_FALSE(MakeServerCredentials({.cert = path_}).ok());
  EXPECT_EQ(MakeServerCredentials({.cert = path_, .key = path_}).status().message(),
            path_ + ": is not a PEM file with a CERTIFICATE");
  EXPECT_EQ(MakeServerCredentials({.cert = path_ + "x", .key = path_}).status().message(),
            path_ + "x: cannot be read");
  EXPECT_FALSE(MakeChannelCredentials({.token_file = path_}).ok());
  EXPECT_FALSE(MakeChannelCredentials({.ca = path_}).ok());
  EXPECT_TRUE(MakeServerCredentials({}).ok());
  EXPECT_TRUE(MakeChannelCredentials({}).ok());
}

}  // namespace
}  // namespace outrider
