// Batches items onto one stream: items posted while a write is in flight leave together with the next write.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace outrider {

// The size at which a batch is closed. A larger item is sent alone.
inline constexpr size_t kBatchBytes = 1 << 20;

// The repeated field of a batch message: `items` of a request, `results` of a response.
template <class Message>
auto* BatchField(Message& message) {
  if constexpr (requires { message.mutable_results(); }) {
    return message.mutable_results();
  } else {
    return message.mutable_items();
  }
}

// May outlive its stream, so that any thread can still post; what is posted after Close is dropped.
// Thread-safe.
template <class Message>
class Outbox {
 public:
  using Item = typename std::remove_pointer_t<decltype(BatchField(std::declval<Message&>()))>::value_type;

  // `start_write` begins the write of a message that stays valid and unchanged until OnWritten. It is called
  // with the outbox's lock held and must not call back.
  explicit Outbox(std::function<void(const Message&)> start_write) : start_write_(std::move(start_write)) {}

  // Queues an item and starts a write if none is in flight.
  void Post(Item item) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (closed_) return;
    waiting_.push_back(std::move(item));
    if (!writing_) StartNext();
  }

  // Sends a message of its own. Only allowed as the first call.
  void PostFirst(Message message) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    in_flight_ = std::move(message);
    writing_ = true;
    start_write_(in_flight_);
  }

  // Call when the write in flight has ended.
  void OnWritten() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!closed_ && !waiting_.empty()) StartNext();
  }

  // Starts no write from now on. Returns true if none is in flight, so that the stream may be finished.
  bool Close() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    waiting_.clear();
    return !writing_;
  }

 private:
  void StartNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    in_flight_.Clear();
    size_t bytes = 0;
    size_t taken = 0;
    for (; taken < waiting_.size(); ++taken) {
      bytes += waiting_[taken].ByteSizeLong();
      if (taken > 0 && bytes > kBatchBytes) break;
      *BatchField(in_flight_)->Add() = std::move(waiting_[taken]);
    }
    waiting_.erase(waiting_.begin(), waiting_.begin() + taken);
    writing_ = true;
    start_write_(in_flight_);
  }

  absl::Mutex mutex_;
  const std::function<void(const Message&)> start_write_;
  std::vector<Item> waiting_ ABSL_GUARDED_BY(mutex_);
  Message in_flight_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace outrider
