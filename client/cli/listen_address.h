// Addresses that services listen on: how they are written, whether they can be had, and how they are reached.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace outrider {

inline constexpr size_t kMaxSocketPath = 107;  // bytes, of sockaddr_un

// An address to listen on, and the flag that gave it.
struct ListenFlag {
  const char* flag;
  std::string address;
};

// Whether nobody listens there yet, and this host can: tries all of them at once, so that two of the same are
// found too. Empty addresses are none. UNAVAILABLE naming the flag. Somebody may still come in between, so
// that listening can fail later.
absl::Status CheckListenFlags(const std::vector<ListenFlag>& flags);

// What a process on this machine calls: an address that stands for all interfaces cannot be called.
std::string ToCall(const std::string& address);

}  // namespace outrider
