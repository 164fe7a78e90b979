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

// INVALID_ARGUMENT, naming the flag, unless it is HOST:PORT; IPv6 in brackets.
absl::StatusOr<Rendezvous> ParseRendezvous(const std::string& text);

// The functions below throw boost::system::system_error, and take the first address of the host.

// A socket that listens on that address only; c10d by itself listens on every address. The caller owns it.
int ListenAt(const Rendezvous& rendezvous);

// This machine's address on the way there, as text. Sends nothing.
std::string OwnAddressTowards(const Rendezvous& rendezvous);

}  // namespace outrider::libtorch
