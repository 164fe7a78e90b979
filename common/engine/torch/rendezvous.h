// Where the ranks of a model meet.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace outrider::libtorch {

struct Rendezvous {
  std::string host;
  uint16_t port = 0;
};

// INVALID_ARGUMENT, naming the flag, unless it is HOST:PORT.
absl::StatusOr<Rendezvous> ParseRendezvous(const std::string& text);

// The rest throws boost::system::system_error.

// A socket that listens there and at no other address; c10d would listen at all of the machine. The caller
// owns it.
int ListenAt(const Rendezvous& rendezvous);

// This machine's address on the way there, as text. Sends nothing.
std::string OwnAddressTowards(const Rendezvous& rendezvous);

}  // namespace outrider::libtorch
