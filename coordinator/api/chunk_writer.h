// How chunks leave for a client.
#pragma once

#include <grpcpp/grpcpp.h>

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
  // Chunks that a client may be behind before its generations wait for it.
  static constexpr size_t kMaxUnsent = 64;

  struct Handlers {
    std::function<void()> on_room, on_cancel, on_done;  // gRPC's threads
  };

  // Before anything is sent.
  void SetHandlers(Handlers handlers) { handlers_ = std::move(handlers); }

  // Queues a chunk. Returns how many are unsent.
  size_t Send(const v1::GenerateResponse& chunk) {
    grpc::ByteBuffer bytes = SerializeMessage(chunk);
    absl::MutexLock lock(&mutex_);
    queue_.push_back(std::move(bytes));
    if (!writing_) WriteNext();
    return queue_.size();
  }

  // Ends the stream after what is queued.
  void End(grpc::Status status) {
    absl::MutexLock lock(&mutex_);
    end_ = std::move(status);
    if (!writing_) Finish(*end_);
  }

  void OnWriteDone(bool ok) override {
    bool room = false;
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      queue_.pop_front();
      if (!ok) queue_.clear();
      room = queue_.size() == kMaxUnsent / 2 || !ok;
      if (!queue_.empty()) {
        WriteNext();
      } else if (end_) {
        Finish(*end_);
      }
    }
    if (room) handlers_.on_room();
  }
  void OnCancel() override { handlers_.on_cancel(); }
  void OnDone() override {
    // What it sets off may destroy this writer before it returns here.
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

  Handlers handlers_;
  absl::Mutex mutex_;
  std::deque<grpc::ByteBuffer> queue_ ABSL_GUARDED_BY(mutex_);
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace outrider
