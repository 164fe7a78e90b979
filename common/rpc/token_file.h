// Bearer tokens in a file.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace outrider {

// One token a line; blank lines do not count. Read again when the file changes; a change that leaves no token
// is not taken. Thread-safe.
class TokenFile {
 public:
  // NOT_FOUND or INVALID_ARGUMENT naming the file if there is no token in it.
  static absl::StatusOr<std::shared_ptr<TokenFile>> Open(const std::string& path);

  // OK if `authorization`, a header's value that is empty if there was none, is "Bearer " and one of the
  // tokens, else UNAUTHENTICATED. Takes as long for a token that is nearly right as for one that is all
  // wrong.
  absl::Status Check(absl::string_view authorization);

  // The value of the header that a client sends.
  std::string Authorization();

 private:
  bool Contains(absl::string_view token);
  explicit TokenFile(std::string path) : path_(std::move(path)) {}
  // Whether the file was read and has a token.
  bool Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadIfChanged() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  absl::Mutex mutex_;
  std::vector<std::string> tokens_ ABSL_GUARDED_BY(mutex_);  // never empty once opened
  std::filesystem::file_time_type changed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace outrider
