#include "common/rpc/token_file.h"

#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace outrider {
namespace {

constexpr char kScheme[] = "Bearer ";

// Compares every byte, so that the time taken does not reveal how much of a guess was right.
bool SameToken(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

absl::string_view BearerToken(absl::string_view authorization) {
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return {};
  return absl::StripAsciiWhitespace(authorization.substr(sizeof(kScheme) - 1));
}

absl::StatusOr<std::shared_ptr<TokenFile>> TokenFile::Open(const std::string& path) {
  if (!std::ifstream(path)) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  std::shared_ptr<TokenFile> file(new TokenFile(path));
  absl::MutexLock lock(&file->mutex_);
  if (!file->Read()) return absl::InvalidArgumentError(absl::StrCat(path, ": holds no token"));
  return file;
}

bool TokenFile::Read() {
  std::error_code error;
  const auto changed = std::filesystem::last_write_time(path_, error);
  if (error) return false;
  std::ifstream in(path_);
  std::vector<std::string> tokens;
  for (std::string line; std::getline(in, line);) {
    const absl::string_view token = absl::StripAsciiWhitespace(line);
    if (!token.empty()) tokens.emplace_back(token);
  }
  changed_ = changed;
  if (tokens.empty()) return false;
  tokens_ = std::move(tokens);
  return true;
}

void TokenFile::ReadIfChanged() {
  std::error_code error;
  const auto changed = std::filesystem::last_write_time(path_, error);
  if (!error && changed != changed_) Read();
}

bool TokenFile::Contains(absl::string_view token) {
  absl::MutexLock lock(&mutex_);
  ReadIfChanged();
  bool known = false;
  for (const std::string& one : tokens_) known |= SameToken(token, one);
  return known;
}

absl::Status TokenFile::Check(absl::string_view authorization) {
  if (authorization.empty()) {
    return absl::UnauthenticatedError("authorization: missing; a bearer token is required");
  }
  if (Contains(BearerToken(authorization))) return absl::OkStatus();
  return absl::UnauthenticatedError("authorization: not a bearer token that this server knows");
}

std::string TokenFile::Authorization() {
  absl::MutexLock lock(&mutex_);
  ReadIfChanged();
  return absl::StrCat(kScheme, tokens_.front());
}

}  // namespace outrider
