#include "common/net/http_stream.h"

#include <arpa/inet.h>
#include <openssl/x509v3.h>

#include <boost/asio/buffer.hpp>

#include "common/obs/log.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

using boost::system::error_code;

// Calls `f` with `tls` if it is set, else with `socket`.
template <class Socket, class Tls, class F>
void OnCarrier(Socket& socket, Tls& tls, F f) {
  if (tls) {
    f(*tls);
  } else {
    f(socket);
  }
}

namespace ssl = boost::asio::ssl;

constexpr std::chrono::seconds kBetweenChecks{1};

template <class T, void Free(T*)>
struct Freed {
  void operator()(T* value) const { Free(value); }
};
using Certificate = std::unique_ptr<X509, Freed<X509, X509_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Freed<GENERAL_NAMES, GENERAL_NAMES_free>>;

std::string TextOf(const ASN1_STRING* text) {
  return std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                     static_cast<size_t>(ASN1_STRING_length(text)));
}

// Empty for the kinds of names that gRPC leaves out too.
std::string TextOf(const GENERAL_NAME& name) {
  switch (name.type) {
    case GEN_DNS:
      return TextOf(name.d.dNSName);
    case GEN_EMAIL:
      return TextOf(name.d.rfc822Name);
    case GEN_URI:
      return TextOf(name.d.uniformResourceIdentifier);
    case GEN_IPADD: {
      const std::string bytes = TextOf(name.d.iPAddress);
      char text[INET6_ADDRSTRLEN] = "";
      if (bytes.size() == 4 || bytes.size() == 16)
        inet_ntop(bytes.size() == 4 ? AF_INET : AF_INET6, bytes.data(), text, sizeof(text));
      return text;
    }
    default:
      return "";
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<TlsFiles>> TlsFiles::Open(std::string cert, std::string key,
                                                         std::string client_ca) {
  std::unique_ptr<TlsFiles> files(new TlsFiles(std::move(cert), std::move(key), std::move(client_ca)));
  files->times_ = files->TimesOfFiles();
  files->checked_ = Clock::now();
  OUTRIDER_TRY(files->Read());
  return files;
}

TlsFiles::Times TlsFiles::TimesOfFiles() const {
  Times times;
  for (const std::string* path : {&cert_, &key_, &client_ca_}) {
    std::error_code ignored;
    times.push_back(std::filesystem::last_write_time(*path, ignored));
  }
  return times;
}

absl::Status TlsFiles::Read() {
  auto fresh = std::make_shared<ssl::context>(ssl::context::tls_server);
  SSL_CTX* const native = fresh->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  // A resumed session would not be checked against authorities that have changed since.
  SSL_CTX_set_session_cache_mode(native, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(native, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  // Otherwise OpenSSL asks at the terminal for the password of an encrypted key.
  boost::system::error_code error;
  fresh->set_password_callback([](size_t, ssl::context::password_purpose) { return std::string(); }, error);
  const auto check = [&error](const std::string& path) {
    return error ? Invalid(path, ": ", error.message()) : absl::OkStatus();
  };
  fresh->use_certificate_chain_file(cert_, error);
  OUTRIDER_TRY(check(cert_));
  fresh->use_private_key_file(key_, ssl::context::pem, error);
  OUTRIDER_TRY(check(key_));
  if (!client_ca_.empty()) {
    fresh->load_verify_file(client_ca_, error);
    OUTRIDER_TRY(check(client_ca_));
    fresh->set_verify_mode(ssl::verify_peer | ssl::verify_fail_if_no_peer_cert);
  }
  context_ = std::move(fresh);
  return absl::OkStatus();
}

std::shared_ptr<ssl::context> TlsFiles::Current() {
  const Clock::time_point now = Clock::now();
  if (now - checked_ < kBetweenChecks) return context_;
  checked_ = now;
  Times times = TimesOfFiles();
  if (times == times_) return context_;
  times_ = std::move(times);
  if (const absl::Status status = Read(); status.ok()) {
    LogInfo("certificates of the http listener read again");
  } else {
    LogWarning("certificates of the http listener cannot be used, those before stay in use",
               {{"error", std::string(status.message())}});
  }
  return context_;
}

std::string HttpStream::ClientCertificate() {
  if (!tls_) return "";
  const Certificate certificate(SSL_get1_peer_certificate(tls_->native_handle()));
  if (certificate == nullptr) return "";
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate.get(), NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    if (std::string text = TextOf(*sk_GENERAL_NAME_value(names.get(), i)); !text.empty()) return text;
  }
  X509_NAME* const subject = X509_get_subject_name(certificate.get());
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  return at < 0 ? "" : TextOf(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
}

HttpStream::HttpStream(Socket socket, std::shared_ptr<asio::ssl::context> tls)
    : socket_(std::move(socket)),
      context_(std::move(tls)),
      read_event_(socket_.get_executor()),
      write_event_(socket_.get_executor()) {
  if (context_ != nullptr) tls_.emplace(socket_, *context_);
}

asio::awaitable<bool> HttpStream::Handshake(Clock::time_point deadline) {
  if (!tls_) co_return true;
  busy_ = true;
  tls_->async_handshake(asio::ssl::stream_base::server, [self = shared_from_this()](const error_code& error) {
    self->busy_ = false;
    self->error_ = error;
    self->write_event_.Notify();
  });
  while (busy_) {
    if (Clock::now() >= deadline) Close();
    co_await write_event_.Wait(socket_.is_open() ? deadline : Clock::time_point::max());
  }
  co_return !error_;
}

void HttpStream::StartRead() {
  if (reading_ || ended_) return;
  reading_ = true;
  OnCarrier(socket_, tls_, [this](auto& carrier) {
    carrier.async_read_some(asio::buffer(piece_),
                            [self = shared_from_this()](const error_code& error, size_t bytes) {
                              self->reading_ = false;
                              self->received_.append(self->piece_.data(), bytes);
                              if (error) self->End();
                              if (self->watched_ && self->received_.size() < kReadAhead) self->StartRead();
                              self->read_event_.Notify();
                            });
  });
}

asio::awaitable<HttpStream::Read> HttpStream::ReadMore(Clock::time_point deadline) {
  const size_t before = received_.size();
  StartRead();
  while (received_.size() == before) {
    if (ended_) co_return Read::kEnd;
    if (Clock::now() >= deadline) co_return Read::kLate;
    co_await read_event_.Wait(deadline);
  }
  co_return Read::kMore;
}

asio::awaitable<bool> HttpStream::Write(absl::string_view bytes, Clock::duration patience) {
  while (!bytes.empty() && socket_.is_open()) {
    busy_ = true;
    OnCarrier(socket_, tls_, [&](auto& carrier) {
      carrier.async_write_some(asio::buffer(bytes.data(), bytes.size()),
                               [self = shared_from_this()](const error_code& error, size_t written) {
                                 self->busy_ = false;
                                 self->error_ = error;
                                 self->written_ = written;
                                 self->write_event_.Notify();
                               });
    });
    const Clock::time_point deadline = Clock::now() + patience;
    // The bytes must stay where they are until the write has ended.
    while (busy_) {
      if (Clock::now() >= deadline) Close();
      co_await write_event_.Wait(socket_.is_open() ? deadline : Clock::time_point::max());
    }
    if (error_) co_return false;
    bytes.remove_prefix(written_);
  }
  co_return bytes.empty();
}

asio::awaitable<void> HttpStream::Linger(Clock::time_point deadline) {
  Unwatch();
  if (tls_ && socket_.is_open()) {
    tls_->async_shutdown([self = shared_from_this()](const error_code&) {});
  } else {
    error_code ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
  }
  while (!ended_ && Clock::now() < deadline) {
    received_.clear();
    StartRead();
    co_await read_event_.Wait(deadline);
  }
  Close();
}

}  // namespace outrider
