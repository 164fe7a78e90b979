#include "common/rpc/listener.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "bench/temporary_folder.h"
#include "common/rpc/address.h"
#include "common/rpc/error.h"

namespace outrider {
namespace {

using ::testing::HasSubstr;

// A client's end of a connection, closed with it.
class Client {
 public:
  Client(const std::string& host, const std::string& address) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const std::string port = absl::StrCat(ParseHostPort(address)->port);
    if (getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return;
    const absl::Cleanup free = [found] { freeaddrinfo(found); };
    Connect(found->ai_family, found->ai_addr, found->ai_addrlen);
  }
  explicit Client(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::copy(path.begin(), path.end(), address.sun_path);
    Connect(AF_UNIX, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  }
  Client(const Client&) = delete;
  ~Client() { close(fd_); }

  bool connected() const { return connected_; }
  // Waits until the server has closed its end.
  bool IsTurnedAway() const {
    char byte = 0;
    return recv(fd_, &byte, 1, 0) <= 0;
  }

 private:
  void Connect(int family, const sockaddr* address, socklen_t length) {
    fd_ = socket(family, SOCK_STREAM, 0);
    connected_ = connect(fd_, address, length) == 0;
  }

  int fd_ = -1;
  bool connected_ = false;
};

class ListenerTest : public ::testing::Test {
 protected:
  ~ListenerTest() override {
    if (listener_ != nullptr) listener_->Stop();
    for (const int connection : taken_) close(connection);
  }

  void Start(const std::string& address, int most = 100) {
    auto listener = Listener::Bind(address);
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    const auto take = [this](int /*listener*/, int connection) {
      absl::MutexLock lock(&mutex_);
      taken_.push_back(connection);
    };
    listener_->Start(most, take, [this](int connections) {
      absl::MutexLock lock(&mutex_);
      turned_away_ += connections;
    });
  }
  // Waits until `count` connections were taken in total.
  bool Taken(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return taken_.size() >= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&enough), absl::Seconds(20));
  }
  int turned_away() {
    absl::MutexLock lock(&mutex_);
    return turned_away_;
  }

  absl::Mutex mutex_;
  std::vector<int> taken_ ABSL_GUARDED_BY(mutex_);
  int turned_away_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<Listener> listener_;
};

TEST_F(ListenerTest, TurnsAwayWhatIsTooMuchUntilOneHasGone) {
  Start("127.0.0.1:0", 2);
  const Client first("127.0.0.1", listener_->address()), second("127.0.0.1", listener_->address());
  ASSERT_TRUE(Taken(2));
  EXPECT_TRUE(Client("127.0.0.1", listener_->address()).IsTurnedAway());
  EXPECT_TRUE(Client("127.0.0.1", listener_->address()).IsTurnedAway());
  EXPECT_EQ(turned_away(), 1) << "the next are reported in a minute";
  {
    absl::MutexLock lock(&mutex_);
    close(taken_[0]);
    // The new descriptor has the number of the closed one, but is not the connection.
    taken_[0] = open("/dev/null", O_RDONLY);
  }
  const Client next("127.0.0.1", listener_->address());
  EXPECT_TRUE(Taken(3));
  EXPECT_TRUE(Client("127.0.0.1", listener_->address()).IsTurnedAway());
}

TEST_F(ListenerTest, AllAddressesAreThoseOfBothFamilies) {
  Start("0.0.0.0:0");
  EXPECT_THAT(listener_->address(), ::testing::StartsWith("0.0.0.0:"));
  EXPECT_TRUE(Client("127.0.0.1", listener_->address()).connected());
  const bool has_ipv6 = Client("::1", listener_->address()).connected();
  EXPECT_TRUE(Taken(has_ipv6 ? 2 : 1));
}

TEST_F(ListenerTest, ANameHasOnePortAtAllItsAddresses) {
  Start("localhost:0");
  EXPECT_TRUE(Client("127.0.0.1", listener_->address()).connected());
  EXPECT_NE(ParseHostPort(listener_->address())->port, 0);
}

TEST_F(ListenerTest, SaysWhyAnAddressCannotBeBound) {
  Start("127.0.0.1:0");
  const absl::Status twice = Listener::Bind(listener_->address()).status();
  EXPECT_EQ(ReasonOf(twice), "ADDRESS_UNAVAILABLE");
  EXPECT_EQ(twice.message(),
            absl::StrCat("cannot listen on ", listener_->address(), ": Address already in use"));
  EXPECT_THAT(Listener::Bind("198.51.100.1:0").status().message(),
              HasSubstr("198.51.100.1:0: Cannot assign requested address"));
  EXPECT_THAT(Listener::Bind("no-such-host.invalid:0").status().message(),
              HasSubstr("no-such-host.invalid:0: "));
  EXPECT_THAT(Listener::Bind(absl::StrCat("unix:/", std::string(200, 'a'))).status().message(),
              HasSubstr("the path is too long"));
}

TEST_F(ListenerTest, ReplacesASocketThatWasLeftAndNoOtherFile) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/socket", file = folder.path() + "/file";
  const auto left = Listener::Bind("unix:" + path);
  Start("unix:" + path);
  EXPECT_TRUE(Client(path).connected());
  EXPECT_TRUE(Taken(1));
  listener_->Stop();
  EXPECT_FALSE(std::filesystem::exists(path));
  std::ofstream(file) << "text";
  EXPECT_EQ(ReasonOf(Listener::Bind("unix:" + file).status()), "ADDRESS_UNAVAILABLE");
  EXPECT_TRUE(std::filesystem::exists(file));
}

}  // namespace
}  // namespace outrider
