// Whether the client of an HTTP request is still there. The library hands out no sockets, so the connection
// is found among the process's own by its two ends.
#pragma once

#include <string>

namespace outrider {

class ClientConnection {
 public:
  // Of the connection between this process's `local_port` and a client's numeric address and port, which must
  // stay open for as long as this is used.
  ClientConnection(const std::string& remote_address, int remote_port, int local_port);

  // The client has closed its end. False if the connection was not found.
  bool gone() const;

 private:
  int socket_ = -1;
};

}  // namespace outrider
