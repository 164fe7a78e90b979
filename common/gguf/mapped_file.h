// A file mapped into memory, read-only.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace outrider {

// Keeps a regular file mapped while it lives. Movable; a move leaves the bytes where they are.
class MappedFile {
 public:
  // NOT_FOUND if there is no such file, FAILED_PRECONDITION if it cannot be read or is not a regular file,
  // RESOURCE_EXHAUSTED if it cannot be mapped; the message begins with the path.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  absl::string_view bytes() const { return {data_.get(), size_}; }

 private:
  struct Unmap {
    size_t size;
    void operator()(char* data) const;
  };

  MappedFile() = default;

  std::string path_;
  std::unique_ptr<char, Unmap> data_{nullptr, Unmap{0}};  // null for an empty file
  size_t size_ = 0;
};

}  // namespace outrider
