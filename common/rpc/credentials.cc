#include "common/rpc/credentials.h"

#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/error.h"
#include "common/rpc/rate_limited_count.h"
#include "common/spec/status.h"
#include "common/text/strings.h"

namespace outrider {
namespace {

using grpc::experimental::FileWatcherCertificateProvider;

constexpr unsigned kRefreshSeconds = 1;
constexpr char kHeader[] = "authorization";

// gRPC does not report a file that it cannot use: every handshake just fails.
absl::Status CheckFiles(const std::string& cert, const std::string& key, const std::string& ca) {
  if (cert.empty() != key.empty()) return Invalid("a certificate and its private key must be given together");
  for (const auto& [path, what] :
       {std::pair(cert, "CERTIFICATE"), std::pair(key, "PRIVATE KEY"), std::pair(ca, "CERTIFICATE")}) {
    if (path.empty()) continue;
    if (!std::ifstream(path)) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
    const std::string text = ReadFile(path).value_or("");
    if (!absl::StrContains(text, "-----BEGIN ") || !absl::StrContains(text, what)) {
      return Invalid(path, ": is not a PEM file with a ", what);
    }
  }
  return absl::OkStatus();
}

// Rejects calls without a valid token.
class TokenCheck final : public grpc::AuthMetadataProcessor {
 public:
  TokenCheck(std::shared_ptr<TokenFile> tokens, std::function<void(int)> on_refused)
      : tokens_(std::move(tokens)), on_refused_(std::move(on_refused)) {}

  bool IsBlocking() const override { return false; }

  // The header stays with the call: the service distinguishes clients by it.
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* /*context*/,
                       OutputMetadata* /*consumed*/, OutputMetadata* /*response*/) override {
    const auto found = metadata.find(kHeader);
    const absl::string_view value = found == metadata.end()
                                        ? absl::string_view()
                                        : absl::string_view(found->second.data(), found->second.size());
    if (absl::Status status = tokens_->Check(value); !status.ok()) {
      if (const int refused = refused_.Count(); refused > 0 && on_refused_) on_refused_(refused);
      return ToGrpc(status);
    }
    return grpc::Status::OK;
  }

 private:
  const std::shared_ptr<TokenFile> tokens_;
  const std::function<void(int)> on_refused_;
  RateLimitedCount refused_;
};

// Adds the token to each call.
class TokenSender final : public grpc::MetadataCredentialsPlugin {
 public:
  explicit TokenSender(std::shared_ptr<TokenFile> tokens) : tokens_(std::move(tokens)) {}

  bool IsBlocking() const override { return false; }
  const char* GetType() const override { return "bearer-token-file"; }
  grpc::string DebugString() override { return "TokenSender{}"; }
  grpc::Status GetMetadata(grpc::string_ref /*url*/, grpc::string_ref /*method*/,
                           const grpc::AuthContext& /*context*/,
                           std::multimap<grpc::string, grpc::string>* metadata) override {
    metadata->emplace(kHeader, tokens_->Authorization());
    return grpc::Status::OK;
  }

 private:
  const std::shared_ptr<TokenFile> tokens_;
};

constexpr char kScheme[] = "Bearer ";

// Compares every byte, so that the time taken does not reveal how much of a guess was right.
bool SameToken(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const ServerSecurity& security) {
  if (security.cert.empty() && security.key.empty()) {
    if (!security.client_ca.empty() || !security.token_file.empty()) {
      return Invalid("client certificates and tokens need TLS: give a certificate and its private key");
    }
    return grpc::InsecureServerCredentials();
  }
  OUTRIDER_TRY(CheckFiles(security.cert, security.key, security.client_ca));
  grpc::experimental::TlsServerCredentialsOptions options(std::make_shared<FileWatcherCertificateProvider>(
      security.key, security.cert, security.client_ca, kRefreshSeconds));
  options.watch_identity_key_cert_pairs();
  if (!security.client_ca.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::experimental::TlsServerCredentials(options);
  if (!security.token_file.empty()) {
    auto tokens = OUTRIDER_TRY(TokenFile::Open(security.token_file));
    credentials->SetAuthMetadataProcessor(
        std::make_shared<TokenCheck>(std::move(tokens), security.on_refused));
  }
  return credentials;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const ChannelSecurity& security) {
  if (security.ca.empty()) {
    if (!security.cert.empty() || !security.key.empty() || !security.token_file.empty()) {
      return Invalid(
          "a certificate and tokens need TLS: give the CA that the server's certificate is signed by");
    }
    return grpc::InsecureChannelCredentials();
  }
  OUTRIDER_TRY(CheckFiles(security.cert, security.key, security.ca));
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(std::make_shared<FileWatcherCertificateProvider>(
      security.key, security.cert, security.ca, kRefreshSeconds));
  options.watch_root_certs();
  if (!security.cert.empty()) options.watch_identity_key_cert_pairs();
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::experimental::TlsCredentials(options);
  if (security.token_file.empty()) return credentials;
  auto tokens = OUTRIDER_TRY(TokenFile::Open(security.token_file));
  return grpc::CompositeChannelCredentials(
      credentials, grpc::MetadataCredentialsFromPlugin(std::make_unique<TokenSender>(std::move(tokens))));
}

absl::string_view BearerToken(absl::string_view authorization) {
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return {};
  return absl::StripAsciiWhitespace(authorization.substr(sizeof(kScheme) - 1));
}

absl::StatusOr<std::shared_ptr<TokenFile>> TokenFile::Open(const std::string& path) {
  if (!std::ifstream(path)) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  std::shared_ptr<TokenFile> file(new TokenFile(path));
  absl::MutexLock lock(&file->mutex_);
  if (!file->Read()) return Invalid(path, ": holds no token");
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

absl::Status TokenFile::Check(absl::string_view authorization) {
  if (authorization.empty()) {
    return absl::UnauthenticatedError("authorization: missing; a bearer token is required");
  }
  const absl::string_view token = BearerToken(authorization);
  absl::MutexLock lock(&mutex_);
  ReadIfChanged();
  bool known = false;
  for (const std::string& one : tokens_) known |= SameToken(token, one);
  if (known) return absl::OkStatus();
  return absl::UnauthenticatedError("authorization: not a bearer token that this server knows");
}

std::string TokenFile::Authorization() {
  absl::MutexLock lock(&mutex_);
  ReadIfChanged();
  return absl::StrCat(kScheme, tokens_.front());
}

}  // namespace outrider
