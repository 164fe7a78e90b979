#include "common/engine/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace outrider {
namespace {

constexpr size_t kAlignment = 64;
constexpr uintptr_t kHugePage = uintptr_t{2} << 20;

// Reads the number after `key` (the first one if `key` is empty) from a file of the kernel; nullopt if there
// is none.
std::optional<size_t> ReadNumber(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  while (!key.empty() && file >> word && word != key) {
  }
  size_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

}  // namespace

size_t AvailableMemory(const std::string& proc, const std::string& cgroup) {
  const auto kilobytes = ReadNumber(proc + "/meminfo", "MemAvailable:");
  const size_t machine = kilobytes ? *kilobytes * 1024 : std::numeric_limits<size_t>::max();
  const auto limit = ReadNumber(cgroup + "/memory.max", "");
  const auto taken = ReadNumber(cgroup + "/memory.current", "");
  if (!limit || !taken) return machine;
  const size_t files = ReadNumber(cgroup + "/memory.stat", "inactive_file").value_or(0);
  const size_t held = *taken - std::min(*taken, files);
  return std::min(machine, *limit - std::min(*limit, held));
}

absl::StatusOr<Buffer> Buffer::Allocate(size_t bytes, absl::string_view what) {
  Buffer buffer;
  if (bytes <= std::numeric_limits<size_t>::max() - kAlignment) {
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    buffer.data_.reset(static_cast<char*>(std::aligned_alloc(kAlignment, std::max(rounded, kAlignment))));
  }
  if (buffer.data_ == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", bytes, " bytes for ", what));
  }
  buffer.bytes_ = bytes;
  // Advises the huge pages inside the buffer. Only a hint: failure costs nothing but speed.
  const uintptr_t data = reinterpret_cast<uintptr_t>(buffer.data());
  const uintptr_t begin = (data + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (data + bytes) / kHugePage * kHugePage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  return buffer;
}

}  // namespace outrider
