// Ranks of one process, with real sockets between them.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>

#include <cstdlib>
#include <string>

#include "tests/unit/engine_helpers.h"

namespace outrider::testing {

// c10d records what a process sends in one place, which is not made for several groups in a process.
[[maybe_unused]] const int kNoRecord = setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);

// An address for these tests alone. Its port stays bound here, but a rank can bind it too, since both sockets
// reuse addresses.
inline std::string FreeAddress() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  EXPECT_EQ(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  return absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
}

inline RunnerOptions RankOptions(const std::string& model, int size, int rank,
                                 const std::string& rendezvous) {
  RunnerOptions options = Options(model);
  options.engine = "torch";
  options.parallel = {
      .size = size, .rank = rank, .rendezvous = rendezvous, .on_wait = nullptr, .on_lost = nullptr};
  return options;
}

}  // namespace outrider::testing
