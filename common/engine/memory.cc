#include "common/engine/memory.h"

#include <ATen/ATen.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace outrider {
namespace {

constexpr uintptr_t kHugePage = uintptr_t{2} << 20;

// The whole huge pages inside the block. A hint: its failure changes nothing but speed.
void AdviseHugePages(char* data, size_t bytes) {
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / kHugePage * kHugePage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

// A number in a file of the kernel's, after `key`; unlimited if there is none.
size_t ReadBytes(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  while (!key.empty() && file >> word && word != key) {
  }
  size_t value = 0;
  return file >> value ? value : std::numeric_limits<size_t>::max();
}

}  // namespace

size_t AvailableMemory() {
  const size_t kilobytes = ReadBytes("/proc/meminfo", "MemAvailable:");
  const size_t machine = kilobytes > std::numeric_limits<size_t>::max() / 1024 ? kilobytes : kilobytes * 1024;
  const size_t limit = ReadBytes("/sys/fs/cgroup/memory.max", "");
  const size_t taken = ReadBytes("/sys/fs/cgroup/memory.current", "");
  return std::min(machine, limit > taken ? limit - taken : machine);
}

struct Buffer::Holder {
  at::Tensor tensor;
};

Buffer::Buffer() = default;
Buffer::~Buffer() = default;
Buffer::Buffer(Buffer&&) noexcept = default;
Buffer& Buffer::operator=(Buffer&&) noexcept = default;

absl::StatusOr<Buffer> Buffer::Allocate(size_t bytes, absl::string_view what) {
  try {
    Buffer buffer;
    buffer.holder_ = std::make_unique<Holder>();
    buffer.holder_->tensor = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
    buffer.data_ = static_cast<char*>(buffer.holder_->tensor.data_ptr());
    buffer.bytes_ = bytes;
    AdviseHugePages(buffer.data_, bytes);
    return buffer;
  } catch (const std::exception&) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", bytes, " bytes for ", what));
  }
}

}  // namespace outrider
