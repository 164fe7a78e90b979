#include "common/net/http_stream.h"

#include <boost/asio/buffer.hpp>
#include <utility>

#include "common/net/tls_files.h"

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

}  // namespace

HttpStream::HttpStream(Socket socket, std::shared_ptr<asio::ssl::context> tls)
    : socket_(std::move(socket)),
      context_(std::move(tls)),
      came_(socket_.get_executor()),
      done_(socket_.get_executor()) {
  if (context_ != nullptr) tls_.emplace(socket_, *context_);
}

asio::awaitable<bool> HttpStream::Handshake(Clock::time_point deadline) {
  if (!tls_) co_return true;
  busy_ = true;
  tls_->async_handshake(asio::ssl::stream_base::server, [self = shared_from_this()](const error_code& error) {
    self->busy_ = false;
    self->error_ = error;
    self->done_.Notify();
  });
  while (busy_) {
    if (Clock::now() >= deadline) Close();
    co_await done_.Wait(socket_.is_open() ? deadline : Clock::time_point::max());
  }
  co_return !error_;
}

std::string HttpStream::ClientCertificate() { return tls_ ? NameOfPeer(tls_->native_handle()) : ""; }

std::string HttpStream::ClientAddress() const {
  error_code error;
  const auto end = socket_.remote_endpoint(error);
  return error ? "" : end.address().to_string();
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
                              self->came_.Notify();
                            });
  });
}

void HttpStream::End() {
  ended_ = true;
  if (const auto on_gone = std::exchange(on_gone_, nullptr)) on_gone();
}

asio::awaitable<HttpStream::Read> HttpStream::ReadMore(Clock::time_point deadline) {
  const size_t before = received_.size();
  StartRead();
  while (received_.size() == before) {
    if (ended_) co_return Read::kEnd;
    if (Clock::now() >= deadline) co_return Read::kLate;
    co_await came_.Wait(deadline);
  }
  co_return Read::kMore;
}

void HttpStream::Watch(std::function<void()> on_gone) {
  if (ended_) return on_gone();
  watched_ = true;
  on_gone_ = std::move(on_gone);
  if (received_.size() < kReadAhead) StartRead();
}

void HttpStream::Unwatch() {
  watched_ = false;
  on_gone_ = nullptr;
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
                                 self->done_.Notify();
                               });
    });
    const Clock::time_point deadline = Clock::now() + patience;
    // The bytes must stay where they are until the write has ended.
    while (busy_) {
      if (Clock::now() >= deadline) Close();
      co_await done_.Wait(socket_.is_open() ? deadline : Clock::time_point::max());
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
    co_await came_.Wait(deadline);
  }
  Close();
}

void HttpStream::Close() {
  error_code ignored;
  socket_.close(ignored);
  End();
}

}  // namespace outrider
