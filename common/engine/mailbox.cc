#include "common/engine/mailbox.h"

#include <utility>

namespace outrider {

Mailbox::Outcome Mailbox::PutItem(WorkItem& item) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) {
      const bool first = refused_.size() < max_items_ && refused_.insert(item.id).second;
      return first ? Outcome::kClosed : Outcome::kClosedAgain;
    }
    if (commands_.size() >= max_items_) return Outcome::kFull;
    commands_.push_back(std::move(item));
  }
  changed_.notify_one();
  return Outcome::kTaken;
}

void Mailbox::PutControl(Command command) {
  {
    std::lock_guard lock(mutex_);
    if (commands_.size() >= 2 * max_items_) return;
    commands_.push_back(std::move(command));
  }
  changed_.notify_one();
}

void Mailbox::Close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
}

bool Mailbox::busy() const {
  std::lock_guard lock(mutex_);
  return busy_ || !commands_.empty();
}

void Mailbox::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_one();
}

bool Mailbox::Take(bool busy, absl::Time deadline, std::vector<Command>& commands) {
  std::unique_lock lock(mutex_);
  busy_ = busy;
  if (!busy) {
    idle_.notify_all();
    changed_.wait_until(lock, absl::ToChronoTime(deadline),
                        [this] { return stopped_ || !commands_.empty(); });
  }
  commands.clear();
  commands.swap(commands_);
  busy_ |= !commands.empty();
  return !stopped_;
}

void Mailbox::AwaitIdle(absl::Time deadline) {
  std::unique_lock lock(mutex_);
  idle_.wait_until(lock, absl::ToChronoTime(deadline), [this] { return commands_.empty() && !busy_; });
}

}  // namespace outrider
