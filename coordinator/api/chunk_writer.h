// How chunks leave for a client.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/parse_message.h"
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

}  // namespace outrider
