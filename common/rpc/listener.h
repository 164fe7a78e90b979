// The listening sockets of a gRPC port. Those of gRPC (1.51) take connections without limit, and are closed
// for good, unseen, by the first that finds no descriptor.
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
#include "common/rpc/quiet_count.h"

namespace outrider {

// How many connections a port may have: a quarter of the descriptors that this process may open, so that two
// ports leave half of them for files and its own connections, and at most 4096.
int MostConnections();

// Thread-compatible.
class Listener {
 public:
  // Owns a connection that `listener` accepted. On the listener's thread.
  using Take = std::function<void(int listener, int connection)>;
  // Told how many connections were turned away since the last report, at most once a minute. On the
  // listener's thread; may be null.
  using OnTurnedAway = std::function<void(int connections)>;

  // Binds `address`, HOST:PORT or unix:PATH. Port 0 picks one, for all addresses that a name has. All
  // addresses of IPv4 are those of IPv6 too, and a socket that another process left at PATH is replaced, as
  // gRPC does. UNAVAILABLE, naming the address, if none can be bound.
  static absl::StatusOr<std::unique_ptr<Listener>> Bind(const std::string& address);
  ~Listener() { Stop(); }

  // The bound address, with the port that was picked.
  const std::string& address() const { return address_; }

  // Gives connections away from now on, on a thread of its own. One that comes while `most` of them are open
  // is closed. Where no descriptor is left, connections wait until there is one. Call once.
  void Start(int most, Take take, OnTurnedAway on_turned_away);
  // Closes the sockets. Connections that were given away stay.
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
  std::vector<int> sockets_;  // that listen
  int stop_ = -1;             // an event
  std::thread thread_;
  // For the thread.
  int most_ = 0;
  Take take_;
  OnTurnedAway on_turned_away_;
  // The connections that were open when last looked at, by descriptor. gRPC does not say when it closes one,
  // but its inode has then gone.
  absl::flat_hash_map<int, ino_t> open_;
  QuietCount turned_away_;
};

}  // namespace outrider
