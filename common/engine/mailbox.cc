#include "common/engine/mailbox.h"

#include <algorithm>

namespace outrider {
namespace {

// Time between polls of the source while there is work. A poll and its consequences cost half as much as a
// step of a small draft, and such a draft runs all steps of an item in about this time.
constexpr absl::Duration kBusyPause = absl::Microseconds(200);
// gRPC waits whole milliseconds, so the taker spins until a deadline that is nearer.
constexpr absl::Duration kLeastWait = absl::Milliseconds(1);

}  // namespace

Mailbox::Outcome Mailbox::PutItem(WorkItem& item) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) {
      const bool first = refused_.size() < max_items_ && refused_.insert(item.id).second;
      return first ? Outcome::kClosed : Outcome::kClosedAgain;
    }
    if (commands_.size() >= max_items_) return Outcome::kFull;
    commands_.emplace_back(std::move(item));
  }
  WakeTaker();
  return Outcome::kTaken;
}

void Mailbox::Put(std::function<void(SequenceStore& store)> command) {
  {
    std::lock_guard lock(mutex_);
    if (commands_.size() >= std::max(kMaxCommands, 2 * max_items_)) return;
    commands_.emplace_back(std::move(command));
  }
  WakeTaker();
}

void Mailbox::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  WakeTaker();
}

void Mailbox::WakeTaker() {
  if (!source_.poll) return changed_.notify_one();
  std::thread::id taker;
  {
    std::lock_guard lock(mutex_);
    taker = taker_;
  }
  if (taker != std::thread::id() && taker != std::this_thread::get_id()) source_.wake();
}

bool Mailbox::Take(bool busy, absl::Time deadline, std::vector<Command>& commands) {
  {
    std::lock_guard lock(mutex_);
    busy_ = busy;
    if (!busy) idle_.notify_all();
  }
  const bool waits = deadline > absl::Now();
  if (waits) AwaitCommands(deadline);
  if (source_.poll && (waits || absl::Now() >= next_poll_)) {
    if (!waits) source_.poll(absl::InfinitePast());
    next_poll_ = absl::Now() + kBusyPause;
  }
  std::lock_guard lock(mutex_);
  commands.clear();
  commands.swap(commands_);
  busy_ |= !commands.empty();
  return !stopped_;
}

void Mailbox::AwaitCommands(absl::Time deadline) {
  std::unique_lock lock(mutex_);
  const auto changed = [this] { return stopped_ || !commands_.empty(); };
  if (!source_.poll) {
    changed_.wait_until(lock, absl::ToChronoTime(deadline), changed);
    return;
  }
  taker_ = std::this_thread::get_id();
  for (absl::Time now = absl::Now(); !changed() && now < deadline; now = absl::Now()) {
    lock.unlock();
    source_.poll(deadline - now < kLeastWait ? absl::InfinitePast() : deadline);
    lock.lock();
  }
  taker_ = {};
}

}  // namespace outrider
