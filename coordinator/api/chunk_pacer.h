// How often chunks leave for a client.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "common/net/asio.h"
#include "coordinator/servers/grpc_timer.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// Joins chunks of a sample that come soon after one another. Each chunk that leaves wakes threads here and at
// the client, perhaps where the models run. Executor thread; held by shared_ptr.
class ChunkPacer : public std::enable_shared_from_this<ChunkPacer> {
 public:
  // Calls `send` no sooner than `interval` after the last time, and never after destruction.
  ChunkPacer(const asio::any_io_executor& executor, Clock::duration interval,
             std::function<void(const v1::GenerateResponse&)> send)
      : interval_(interval), send_(std::move(send)), timer_(executor) {}

  // Sends the chunk with what waits: at once if it is the first, the last, or has what its client wants piece
  // by piece.
  void Add(v1::GenerateResponse chunk) {
    const bool at_once =
        chunk.has_finish() || chunk.has_trace() || chunk.prompt_logprobs_size() > 0 || Clock::now() >= next_;
    const bool is_timed = waiting_.has_value();
    Join(std::move(chunk));
    if (at_once) return Flush();
    if (!is_timed) StartTimer();
  }

  // Sends what waits.
  void Flush() {
    timer_.cancel();
    if (!waiting_) return;
    next_ = Clock::now() + interval_;
    send_(*std::exchange(waiting_, std::nullopt));
  }

 private:
  void Join(v1::GenerateResponse&& chunk) {
    if (!waiting_) {
      waiting_ = std::move(chunk);
      return;
    }
    // Merging appends what is repeated, and replaces what is not.
    chunk.set_position(waiting_->position());
    chunk.set_text(waiting_->text() + chunk.text());
    waiting_->MergeFrom(chunk);
  }
  void StartTimer() {
    timer_.expires_at(next_);
    timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
      if (auto pacer = weak.lock(); pacer && !error) pacer->Flush();
    });
  }

  const Clock::duration interval_;
  const std::function<void(const v1::GenerateResponse&)> send_;
  GrpcTimer timer_;
  Clock::time_point next_;  // when a chunk may leave; at first any time
  std::optional<v1::GenerateResponse> waiting_;
};

}  // namespace outrider
