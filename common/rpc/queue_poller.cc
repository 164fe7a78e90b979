#include "common/rpc/queue_poller.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace outrider {
namespace {

// The most tags that one Poll ends, so that streams that bring more do not keep the engine from its work.
constexpr int kMaxEnds = 256;

}  // namespace

void GiveQueuesTheirConnections() { setenv("GRPC_POLL_STRATEGY", "poll", /*overwrite=*/0); }

QueuePoller::QueuePoller(absl::Duration busy_poll, absl::Duration patience)
    : alarm_tag_([this](bool /*ok*/) {
        absl::MutexLock lock(&mutex_);
        alarm_is_set_ = false;
      }),
      busy_poll_(busy_poll),
      patience_(patience),
      helper_([this] { Help(); }) {}

void QueuePoller::Detach() {
  const auto is_zero = +[](int* count) { return *count == 0; };
  grpc::CompletionQueue* queue = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(is_zero, &users_));
    queue = std::exchange(queue_, nullptr);
    queue->Shutdown();
    mutex_.Await(absl::Condition(is_zero, &polling_));
  }
  // gRPC requires that the queue is drained.
  void* tag = nullptr;
  for (bool ok = false; queue->Next(&tag, &ok);) static_cast<QueueTag*>(tag)->End(ok);
}

void QueuePoller::BeginWaiting() {
  std::vector<std::function<void()>> waiting;
  {
    absl::MutexLock lock(&mutex_);
    waiting.swap(waiting_);
  }
  for (const auto& begin : waiting) begin();
}

void QueuePoller::Poll(absl::Time deadline) {
  BeginWaiting();
  Ended ended;
  polls_.fetch_add(1);
  bool polled = Next(absl::InfinitePast(), &ended);
  const bool waits = polled && ended.tag == nullptr && deadline != absl::InfinitePast();
  if (waits) polled = AwaitNext(deadline, &ended);
  polls_.fetch_add(1);
  if (!polled) return AwaitQueue(deadline);
  for (int ends = 1; ended.tag != nullptr; ++ends) {
    ended.tag->End(ended.ok);
    if (ends == kMaxEnds) return;
    // The first event was there already, and more messages may follow it, so the next reads begin at once.
    if (!waits) BeginWaiting();
    ended = {};
    polls_.fetch_add(1);
    Next(absl::InfinitePast(), &ended);
    polls_.fetch_add(1);
  }
}

void QueuePoller::AwaitQueue(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  const auto changed = [](QueuePoller* poller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(poller->mutex_) {
    return poller->woken_ || poller->queue_ != nullptr;
  };
  mutex_.AwaitWithDeadline(absl::Condition(+changed, this), deadline);
  woken_ = false;
}

void QueuePoller::Wake() {
  absl::MutexLock lock(&mutex_);
  if (queue_ == nullptr) {
    woken_ = true;
  } else if (!std::exchange(alarm_is_set_, true)) {
    alarm_.Set(queue_, gpr_inf_past(GPR_CLOCK_MONOTONIC), &alarm_tag_);
  }
}

bool QueuePoller::AwaitNext(absl::Time deadline, Ended* ended) {
  if (busy_poll_ > absl::ZeroDuration() && deadline != absl::InfinitePast()) {
    const absl::Time end = std::min(deadline, absl::Now() + busy_poll_);
    do {
      if (!Next(absl::InfinitePast(), ended)) return false;
      if (ended->tag != nullptr) return true;
    } while (absl::Now() < end);
  }
  return Next(deadline, ended);
}

bool QueuePoller::Next(absl::Time deadline, Ended* ended) {
  grpc::CompletionQueue* queue = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (queue_ == nullptr) return false;
    queue = queue_;
    ++polling_;
  }
  void* tag = nullptr;
  // gRPC treats times before 1970 as the infinite future.
  const auto until = absl::ToChronoTime(std::max(deadline, absl::UnixEpoch()));
  if (queue->AsyncNext(&tag, &ended->ok, until) == grpc::CompletionQueue::GOT_EVENT) {
    ended->tag = static_cast<QueueTag*>(tag);
  }
  absl::MutexLock lock(&mutex_);
  --polling_;
  return true;
}

void QueuePoller::Help() {
  uint64_t last = 0;
  while (!stop_.WaitForNotificationWithTimeout(patience_)) {
    const uint64_t polls = polls_;
    const bool away = polls % 2 == 0 && polls == last;
    last = polls;
    // Helps until the polling thread is back.
    if (away) BeginWaiting();
    for (Ended ended; away && polls_ == polls && Next(absl::Now() + patience_, &ended); ended = {}) {
      if (ended.tag == nullptr) continue;
      ended.tag->End(ended.ok);
      BeginWaiting();
      if (ended.tag != &alarm_tag_) continue;
      // The alarm was meant for the polling thread.
      Wake();
      break;
    }
  }
}

}  // namespace outrider
