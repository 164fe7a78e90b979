// Polls a gRPC completion queue on the thread that handles its events. A message then wakes one thread. With
// gRPC's own threads, one of them would wake first and then wake the handler's.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace outrider {

// Call before any other gRPC function.
//
// By default all gRPC threads share one epoll set. Any of them may wake for a message on a stream between
// services, only to wake the thread that polls the stream's queue. With the strategy "poll", each queue has
// its own connections. (gRPC assigns a model server's new connections in turn to the engine's queue and to
// the health checks' queue. Streams on a connection of the latter still wake both threads.) The environment
// variable GRPC_POLL_STRATEGY takes precedence.
void GiveQueuesTheirConnections();

// The tag of an operation on a completion queue. `on_end` is told whether the operation succeeded.
class QueueTag {
 public:
  explicit QueueTag(std::function<void(bool ok)> on_end) : on_end_(std::move(on_end)) {}
  void End(bool ok) { on_end_(ok); }

 private:
  const std::function<void(bool ok)> on_end_;
};

// Polls one completion queue, whose tags must all be QueueTags.
//
// While the polling thread is busy with other work, a helper thread takes its place, so that pings are
// answered and items are refused or cancelled meanwhile. It checks for this once every `patience`. Tags may
// therefore end on either thread, and on both at once.
class QueuePoller {
 public:
  // Poll spins for `busy_poll` before the thread sleeps, since waking a thread takes longer than a short
  // wait. The helper takes over once the polling thread has been away for `patience`.
  explicit QueuePoller(absl::Duration busy_poll = absl::ZeroDuration(),
                       absl::Duration patience = absl::Milliseconds(20));
  ~QueuePoller() {
    stop_.Notify();
    helper_.join();
  }
  QueuePoller(const QueuePoller&) = delete;
  QueuePoller& operator=(const QueuePoller&) = delete;

  // Polls `queue` from now on.
  void Attach(grpc::CompletionQueue* queue) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    queue_ = queue;
  }
  // Waits until all users have left, whose calls must be ending; then shuts the queue down and drops it.
  void Detach() ABSL_LOCKS_EXCLUDED(mutex_);

  // A user may begin operations on the queue between Join and Leave. Thread-safe.
  void Join() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    ++users_;
  }
  void Leave() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    --users_;
  }

  // Calls `begin`, which begins an operation, at the next Poll, or within the present one if that did not
  // have to wait: a Poll that waited first handles its events. Call it from a tag's end or on the polling
  // thread, since it does not wake a Poll that waits.
  void BeginLater(std::function<void()> begin) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    waiting_.push_back(std::move(begin));
  }

  // Calls End on the tag of each operation that has ended. If none has, waits for one until `deadline`. The
  // engine thus gets what all streams have sent before its next step. For one thread.
  void Poll(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes a Poll that waits, or the next one, return. Thread-safe.
  void Wake() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Ended {
    QueueTag* tag = nullptr;  // null: nothing in time
    bool ok = false;
  };

  // False if there is no queue. AwaitNext spins before it sleeps; Next sleeps at once.
  bool AwaitNext(absl::Time deadline, Ended* ended) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Next(absl::Time deadline, Ended* ended) ABSL_LOCKS_EXCLUDED(mutex_);
  void BeginWaiting() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until there is a queue, Wake is called, or `deadline`.
  void AwaitQueue(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  void Help() ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Mutex mutex_;
  grpc::CompletionQueue* queue_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int users_ ABSL_GUARDED_BY(mutex_) = 0;
  int polling_ ABSL_GUARDED_BY(mutex_) = 0;                             // threads that wait on queue_
  std::vector<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);  // operations that have not begun
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;                          // Wake was called without a queue
  bool alarm_is_set_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Alarm alarm_ ABSL_GUARDED_BY(mutex_);
  QueueTag alarm_tag_;
  const absl::Duration busy_poll_;
  const absl::Duration patience_;
  std::atomic<uint64_t> polls_ = 0;  // odd while Poll polls
  absl::Notification stop_;
  std::thread helper_;
};

}  // namespace outrider
