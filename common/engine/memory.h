// Large buffers for weights, the KV pool and scratch memory.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace outrider {

// Owns uninitialised memory, aligned to 64 bytes and on huge pages if the system provides them. Move-only.
class Buffer {
 public:
  // RESOURCE_EXHAUSTED, naming `what`, if the allocation fails.
  static absl::StatusOr<Buffer> Allocate(size_t bytes, absl::string_view what);

  char* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }
  float* floats() const { return reinterpret_cast<float*>(data()); }

 private:
  struct Free {
    void operator()(char* data) const { std::free(data); }
  };
  std::unique_ptr<char, Free> data_;
  size_t bytes_ = 0;
};

// Bytes that this process can still allocate: the machine's available memory, or what is left of its cgroup's
// limit if that is less. Inactive pages of files count as available, since the kernel drops them.
size_t AvailableMemory(const std::string& proc = "/proc", const std::string& cgroup = "/sys/fs/cgroup");

}  // namespace outrider
