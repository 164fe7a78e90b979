// Polls a completion queue of gRPC on the thread that acts on what arrives. A message then wakes one thread,
// where gRPC's own threads would take it and wake another.
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

// Call before anything else of gRPC.
//
// By default all of gRPC's threads share one epoll set, so that one of them may wake for a message of the
// streams between the services, only to wake the thread that polls their queue. With poll each queue has its
// own connections. (gRPC gives a model server's new connections in turn to the engine's queue and to that of
// the health checks; one of the latter that has streams still wakes both.) The variable GRPC_POLL_STRATEGY of
// the environment has precedence.
void GiveQueuesTheirConnections();

// The tag of an operation on a completion queue. `on_end` is told whether the operation succeeded.
class QueueTag {
 public:
  explicit QueueTag(std::function<void(bool ok)> on_end) : on_end_(std::move(on_end)) {}
  void End(bool ok) { on_end_(ok); }

 private:
  const std::function<void(bool ok)> on_end_;
};

// All tags of the queue are QueueTags.
//
// A helper thread takes over while the polling thread is busy with other things for long, so that pings are
// answered and items refused or cancelled meanwhile; it looks fifty times a second. Tags may therefore end on
// either thread, also on both at once.
class QueuePoller {
 public:
  // Poll spins for `busy_poll` before it lets the thread sleep: waking it takes longer than a short wait. The
  // helper takes over once the polling thread has been away for `patience`.
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
  // Waits until all users have left, so their calls must end, then shuts the queue down and drops it.
  void Detach() ABSL_LOCKS_EXCLUDED(mutex_);

  // A user begins operations on the queue between Join and Leave. Thread-safe.
  void Join() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    ++users_;
  }
  void Leave() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    --users_;
  }

  // Calls `begin`, which begins an operation, when the queue is next polled, or in this Poll if it did not
  // have to wait: a thread that waited first acts on what it was told. For a tag's end and for the polling
  // thread: a poll that waits is not woken.
  void BeginLater(std::function<void()> begin) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    waiting_.push_back(std::move(begin));
  }

  // Calls End on the tag of each operation that has ended. If none has, waits for one until `deadline`. The
  // engine thus sees what all streams have brought before its next step. For one thread.
  void Poll(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes a Poll that waits, or the next one, return. Thread-safe.
  void Wake() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Ended {
    QueueTag* tag = nullptr;  // null: nothing in time
    bool ok = false;
  };

  // False if there is no queue. AwaitNext spins at first, Next sleeps at once.
  bool AwaitNext(absl::Time deadline, Ended* ended) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Next(absl::Time deadline, Ended* ended) ABSL_LOCKS_EXCLUDED(mutex_);
  void BeginWaiting() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until there is a queue, Wake is called, or `deadline`.
  void AwaitQueue(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  void Help() ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Mutex mutex_;
  grpc::CompletionQueue* queue_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int users_ ABSL_GUARDED_BY(mutex_) = 0;
  int polling_ ABSL_GUARDED_BY(mutex_) = 0;                             // threads that wait on it
  std::vector<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);  // to be begun
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;                          // while there is no queue
  bool alarm_is_set_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Alarm alarm_ ABSL_GUARDED_BY(mutex_);
  QueueTag alarm_tag_;
  const absl::Duration busy_poll_;
  const absl::Duration patience_;
  std::atomic<uint64_t> polls_ = 0;  // odd: Poll waits
  absl::Notification stop_;
  std::thread helper_;
};

}  // namespace outrider
