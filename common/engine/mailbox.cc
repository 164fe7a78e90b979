#include "common/engine/mailbox.h"

#include <utility>

namespace outrider {

void Mailbox::Put(Command command) {
  {
    std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
  }
  changed_.notify_one();
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
