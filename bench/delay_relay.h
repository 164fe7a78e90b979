// Forwards the bytes of connections after a delay, each direction separately, like a longer network path. The
// delay is accurate to some tens of microseconds. Also counts the bytes.
#pragma once

#include "common/net/asio.h"
// These follow asio.h, which prepares what Boost 1.74 needs.
#include <atomic>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace outrider {

// Both ends are unix sockets. Runs on the thread of `io`, which must outlive it and stop before it ends.
class DelayRelay {
 public:
  using Clock = std::chrono::steady_clock;

  DelayRelay(asio::io_context& io, const std::string& listen, std::string connect)
      : io_(io), acceptor_(io, Protocol::endpoint(listen)), connect_(std::move(connect)) {
    asio::co_spawn(io_, Accept(), asio::detached);
  }

  // Sets the delay in each direction, for bytes that arrive from now on. Thread-safe.
  void SetDelay(std::chrono::duration<double> delay) {
    delay_ = std::chrono::duration_cast<Clock::duration>(delay);
  }
  // The bytes that have arrived, in both directions together. Thread-safe.
  uint64_t bytes() const { return bytes_; }

 private:
  using Protocol = asio::local::stream_protocol;
  struct Connection {
    explicit Connection(asio::io_context& io) : near(io), far(io) {}
    Protocol::socket near, far;
  };
  struct Chunk {
    Clock::time_point due;
    std::vector<char> bytes;  // empty: the end of the stream
  };
  // One direction of a connection. Its reader fills a queue that its writer empties.
  struct Way {
    std::shared_ptr<Connection> connection;
    Protocol::socket &from, &to;
    std::deque<Chunk> queue;
    asio::steady_timer arrival, due;
  };

  asio::awaitable<void> Accept() {
    for (;;) {
      const auto connection = std::make_shared<Connection>(io_);
      co_await acceptor_.async_accept(connection->near, asio::use_awaitable);
      boost::system::error_code failed;
      connection->far.connect(Protocol::endpoint(connect_), failed);
      if (failed) continue;  // closes the other end, so the client tries again
      Open(connection, connection->near, connection->far);
      Open(connection, connection->far, connection->near);
    }
  }

  void Open(std::shared_ptr<Connection> connection, Protocol::socket& from, Protocol::socket& to) {
    auto way = std::shared_ptr<Way>(
        new Way{std::move(connection), from, to, {}, asio::steady_timer(io_), asio::steady_timer(io_)});
    asio::co_spawn(io_, Read(way), asio::detached);
    asio::co_spawn(io_, Write(way), asio::detached);
  }

  asio::awaitable<void> Read(std::shared_ptr<Way> way) {
    std::vector<char> bytes(1 << 16);
    boost::system::error_code ended;
    while (!ended) {
      const size_t count = co_await way->from.async_read_some(
          asio::buffer(bytes), asio::redirect_error(asio::use_awaitable, ended));
      bytes_ += count;
      way->queue.push_back({Clock::now() + delay_.load(), {bytes.data(), bytes.data() + count}});
      way->arrival.cancel();
    }
  }

  asio::awaitable<void> Write(std::shared_ptr<Way> way) {
    boost::system::error_code failed;
    while (!failed) {
      while (way->queue.empty()) {
        way->arrival.expires_at(Clock::time_point::max());
        boost::system::error_code cancelled;
        co_await way->arrival.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
      }
      const Chunk chunk = std::move(way->queue.front());
      way->queue.pop_front();
      way->due.expires_at(chunk.due);
      co_await way->due.async_wait(asio::use_awaitable);
      if (chunk.bytes.empty()) break;
      co_await asio::async_write(way->to, asio::buffer(chunk.bytes),
                                 asio::redirect_error(asio::use_awaitable, failed));
    }
    boost::system::error_code closed;
    way->to.shutdown(Protocol::socket::shutdown_send, closed);
  }

  asio::io_context& io_;
  Protocol::acceptor acceptor_;
  const std::string connect_;
  std::atomic<Clock::duration> delay_ = Clock::duration::zero();
  std::atomic<uint64_t> bytes_ = 0;
};

}  // namespace outrider
