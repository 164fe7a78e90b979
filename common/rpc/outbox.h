// Batches items onto one stream: items posted while a write is in flight, or between Hold and Release, leave
// together with the next write.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
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

// May outlive its stream, so that any thread can still post; items posted after Seal or Close are dropped.
// Thread-safe.
//
// Bounded: when more than `max_bytes` wait because the other side does not read, all waiting items are freed,
// the outbox closes, and `overflowed` is true from then on. A write is in flight at that time, so the stream
// learns of it in OnWritten.
template <class Message>
class Outbox {
 public:
  using Item = typename std::remove_pointer_t<decltype(BatchField(std::declval<Message&>()))>::value_type;

  // `start_write` completes a message and begins its write; the message stays valid and unchanged until
  // OnWritten. It is called with the outbox's lock held and must not call back.
  explicit Outbox(std::function<void(Message&)> start_write,
                  size_t max_bytes = std::numeric_limits<size_t>::max())
      : start_write_(std::move(start_write)), max_bytes_(max_bytes) {}

  // Starts no write until Release. For callers that post several items at once.
  void Hold() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    held_ = true;
  }
  void Release() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    held_ = false;
    if (!writing_ && HasMore()) StartNext();
  }

  // Queues an item and starts a write if none is in flight.
  void Post(Item item) ABSL_LOCKS_EXCLUDED(mutex_) {
    const size_t bytes = item.ByteSizeLong();
    absl::MutexLock lock(&mutex_);
    if (sealed_) return;
    waiting_bytes_ += bytes;
    waiting_.push_back({std::move(item), bytes});
    if (!writing_ && !held_) {
      StartNext();
    } else if (writing_ && waiting_bytes_ > max_bytes_) {
      overflowed_ = true;
      Drop();
    }
  }

  // Sends a message of its own. Only allowed as the first call.
  void PostFirst(Message message) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (sealed_) return;
    in_flight_ = std::move(message);
    began_ = true;
    writing_ = true;
    start_write_(in_flight_);
  }

  // Sends a message even if no item waits, so that the reader gets what `start_write` adds. Does nothing
  // before PostFirst, whose message carries the same.
  void PostEmpty() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (sealed_ || !began_) return;
    owes_message_ = true;
    if (!writing_ && !held_) StartNext();
  }

  // Call when the write in flight has ended. Returns true if no other will follow.
  bool OnWritten() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!held_ && HasMore()) StartNext();
    return sealed_ && !writing_ && !HasMore();
  }

  // Stops taking items. Those that wait are still written. Returns true if there are none and no write is in
  // flight, so that the stream may be finished.
  bool Seal() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    sealed_ = true;
    return !writing_ && !HasMore();
  }

  // Stops taking items and starting writes. Returns true if none is in flight.
  bool Close() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    Drop();
    return !writing_;
  }

  // Whether items are still taken.
  bool open() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return !sealed_;
  }
  bool overflowed() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return overflowed_;
  }

 private:
  struct Waiting {
    Item item;
    size_t bytes;
  };

  void Drop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    sealed_ = true;
    owes_message_ = false;
    std::vector<Waiting>().swap(waiting_);
    waiting_bytes_ = 0;
  }

  bool HasMore() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return owes_message_ || !waiting_.empty(); }

  void StartNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    in_flight_.Clear();
    size_t bytes = 0;
    size_t taken = 0;
    for (; taken < waiting_.size(); ++taken) {
      if (taken > 0 && bytes + waiting_[taken].bytes > kBatchBytes) break;
      bytes += waiting_[taken].bytes;
      *BatchField(in_flight_)->Add() = std::move(waiting_[taken].item);
    }
    waiting_.erase(waiting_.begin(), waiting_.begin() + taken);
    waiting_bytes_ -= bytes;
    owes_message_ = false;
    writing_ = true;
    start_write_(in_flight_);
  }

  mutable absl::Mutex mutex_;
  const std::function<void(Message&)> start_write_;
  const size_t max_bytes_;
  std::vector<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  size_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  Message in_flight_ ABSL_GUARDED_BY(mutex_);
  bool began_ ABSL_GUARDED_BY(mutex_) = false;  // PostFirst was called
  bool owes_message_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  bool sealed_ ABSL_GUARDED_BY(mutex_) = false;
  bool overflowed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace outrider
