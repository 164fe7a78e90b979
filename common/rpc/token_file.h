// A file of bearer tokens.
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

// The token of an authorization header, "Bearer TOKEN" (RFC 6750), whatever the case of its scheme; empty if
// it has none.
absl::string_view BearerToken(absl::string_view authorization);

// One token per line; blank lines are ignored. The file is read again when it changes; a version without a
// token is ignored. Thread-safe.
class TokenFile {
 public:
  // NOT_FOUND or INVALID_ARGUMENT, naming the file, if it cannot be read or has no token.
  static absl::StatusOr<std::shared_ptr<TokenFile>> Open(const std::string& path);

  // Checks the value of an authorization header (empty if there was none): OK if it has one of the tokens,
  // else UNAUTHENTICATED. The time taken does not depend on how much of a token is right.
  absl::Status Check(absl::string_view authorization);

  // The authorization header that a client sends.
  std::string Authorization();

 private:
  bool Contains(absl::string_view token);
  explicit TokenFile(std::string path) : path_(std::move(path)) {}
  // Reads the file. Returns whether it has a token.
  bool Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadIfChanged() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  absl::Mutex mutex_;
  std::vector<std::string> tokens_ ABSL_GUARDED_BY(mutex_);  // never empty once opened
  std::filesystem::file_time_type changed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace outrider
