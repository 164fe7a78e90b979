// Addresses that services listen on: how they are written, whether they are free, and how they are reached.
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

// Checks that nobody listens there yet, and that this host can: tries all of them at once, which also finds
// duplicates. Skips empty addresses. UNAVAILABLE naming the flag. Somebody may still come in between, so
// listening can fail later.
absl::Status CheckListenFlags(const std::vector<ListenFlag>& flags);

// Returns the address to call: one that stands for all interfaces cannot be called.
std::string ToCall(const std::string& address);

}  // namespace outrider
