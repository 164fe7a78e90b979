// The listening sockets of a gRPC port. gRPC's own listener (1.51) accepts connections without limit, and
// closes itself for good, without a word, when it first runs out of descriptors.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rpc/rate_limited_count.h"

namespace outrider {

// The most connections that a port may have: a quarter of the descriptors that this process may open, at most
// 4096. Two ports then leave half of them for files and for connections that the process opens.
int MaxConnections();

// Thread-compatible.
class Listener {
 public:
  // Takes ownership of `connection`, which `listener` accepted. Called on the listener's thread.
  using OnConnection = std::function<void(int listener, int connection)>;
  // Called with the number of connections that were turned away since the last report, at most once a minute,
  // on the listener's thread. May be null.
  using OnTurnedAway = std::function<void(int connections)>;

  // Binds `address`, HOST:PORT or unix:PATH. Port 0 picks one port for all addresses of a name. Like gRPC,
  // listens on IPv6 too if the host is 0.0.0.0, and replaces a socket that another process left at PATH.
  // UNAVAILABLE, naming the address, if nothing can be bound; INVALID_ARGUMENT for any other form of address.
  static absl::StatusOr<std::unique_ptr<Listener>> Bind(const std::string& address);
  ~Listener() { Stop(); }

  // The bound address, with the port that was picked.
  const std::string& address() const { return address_; }

  // From now on, accepts connections on a thread of its own and passes them to `on_connection`. Closes a
  // connection that comes while `most` are open. Without a free descriptor, connections wait for one. Call
  // once.
  void Start(int most, OnConnection on_connection, OnTurnedAway on_turned_away);
  // Closes the sockets. Connections that were passed to `on_connection` stay open.
  void Stop();

 private:
  explicit Listener(std::string address) : address_(std::move(address)) {}
  absl::Status BindPath(const std::string& path);
  absl::Status BindPort(const std::string& host, uint16_t port);
  absl::Status BindHost(const std::string& host, uint16_t port);
  void Run();
  void Accept(int socket);
  bool HasRoom();

  std::string address_;
  std::string path_;          // of a Unix socket
  std::vector<int> sockets_;  // listening sockets
  int stop_ = -1;             // an eventfd
  std::thread thread_;
  // Used by the listener's thread.
  int most_ = 0;
  OnConnection on_connection_;
  OnTurnedAway on_turned_away_;
  // The inodes of the connections that were open at the last check, by descriptor. gRPC does not report when
  // it closes a connection, but the descriptor no longer has that inode then.
  absl::flat_hash_map<int, ino_t> open_;
  RateLimitedCount turned_away_;
};

}  // namespace outrider
