// How, and how often, chunks leave for a client.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/net/asio.h"
#include "common/rpc/parse_message.h"
#include "coordinator/servers/grpc_timer.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// The stream to one client. Belongs to gRPC until OnDone.
class ChunkWriter final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  // With this many chunks unsent, the generations wait for the client.
  static constexpr size_t kMaxUnsent = 64;

  struct Handlers {
    std::function<void()> on_room, on_cancel, on_done;  // gRPC's threads
  };

  explicit ChunkWriter(grpc::CallbackServerContext* context) : context_(*context) {}

  // Call before anything is sent.
  void SetHandlers(Handlers handlers) { handlers_ = std::move(handlers); }

  // Queues a chunk, or drops it after End. Returns the number of unsent chunks.
  size_t Send(const v1::GenerateResponse& chunk) {
    grpc::ByteBuffer bytes = SerializeMessage(chunk);
    absl::MutexLock lock(&mutex_);
    if (end_) return 0;
    queue_.push_back(std::move(bytes));
    if (!writing_) WriteNext();
    return queue_.size();
  }

  // Ends the stream once the queue has been sent.
  void End(grpc::Status status) {
    absl::MutexLock lock(&mutex_);
    end_ = std::move(status);
    if (!writing_) Finish(*end_);
  }

  // Chunks sent so far; shows whether the client reads.
  uint64_t written() {
    absl::MutexLock lock(&mutex_);
    return written_;
  }

  // Drops what is queued for a client that does not read it. Acts like a cancellation, also after End.
  void Abandon() {
    {
      absl::MutexLock lock(&mutex_);
      if (!writing_) return;
      // Until this is over the stream does not finish, and the context stays.
      abandoning_ = true;
    }
    context_.TryCancel();
    absl::MutexLock lock(&mutex_);
    abandoning_ = false;
    if (!writing_ && end_) Finish(*end_);
  }

  void OnWriteDone(bool ok) override {
    bool room = false;
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      queue_.pop_front();
      if (ok) {
        ++written_;
      } else {
        queue_.clear();
      }
      room = queue_.size() == kMaxUnsent / 2 || !ok;
      if (!queue_.empty()) {
        WriteNext();
      } else if (end_ && !abandoning_) {
        Finish(*end_);
      }
    }
    if (room) handlers_.on_room();
  }
  void OnCancel() override { handlers_.on_cancel(); }
  void OnDone() override {
    // on_done may destroy this writer before it returns.
    const auto on_done = std::move(handlers_.on_done);
    on_done();
  }

 private:
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    writing_ = true;
    if (queue_.size() == 1 && end_) {
      StartWriteLast(&queue_.front(), grpc::WriteOptions());
    } else {
      StartWrite(&queue_.front());
    }
  }

  grpc::CallbackServerContext& context_;
  Handlers handlers_;
  absl::Mutex mutex_;
  std::deque<grpc::ByteBuffer> queue_ ABSL_GUARDED_BY(mutex_);
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
  uint64_t written_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool abandoning_ ABSL_GUARDED_BY(mutex_) = false;
};

// Joins chunks of a sample that come soon after one another. Each chunk that leaves wakes threads here and at
// the client, perhaps where the models run. Executor thread; held by shared_ptr.
class ChunkPacer : public std::enable_shared_from_this<ChunkPacer> {
 public:
  // Calls `send` no sooner than `interval` after the last time, and never after destruction.
  ChunkPacer(const asio::any_io_executor& executor, Clock::duration interval,
             std::function<void(const v1::GenerateResponse&)> send)
      : interval_(interval), send_(std::move(send)), timer_(executor) {}

  // Sends the chunk with what waits: at once if it is the first, the last, or wanted piece by piece.
  void Add(v1::GenerateResponse chunk) {
    const bool at_once =
        chunk.has_finish() || chunk.has_trace() || chunk.prompt_logprobs_size() > 0 || Clock::now() >= next_;
    const bool is_timed = waiting_.has_value();
    Join(std::move(chunk));
    if (at_once) return Flush();
    if (is_timed) return;
    timer_.expires_at(next_);
    timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
      if (auto pacer = weak.lock(); pacer && !error) pacer->Flush();
    });
  }

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

  const Clock::duration interval_;
  const std::function<void(const v1::GenerateResponse&)> send_;
  GrpcTimer timer_;
  Clock::time_point next_;  // when a chunk may leave; at first any time
  std::optional<v1::GenerateResponse> waiting_;
};

}  // namespace outrider
