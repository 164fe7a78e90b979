// The queue of commands to the engine thread, first in, first out.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "common/engine/work_item.h"
#include "common/kv/lease_table.h"

namespace outrider {

class SequenceStore;

// A work item, or a change to the sequence store.
using Command = std::variant<WorkItem, std::function<void(SequenceStore& store)>>;

// A source of commands that the thread taking them polls itself.
struct CommandSource {
  // Puts arrived commands into the mailbox, or waits for some until `deadline`; may return early. Called by
  // the taker.
  std::function<void(absl::Time deadline)> poll;
  // Makes the waiting poll, or else the next one, return. Thread-safe.
  std::function<void()> wake;
  // Answers given between these two calls are sent together.
  std::function<void()> hold_answers;
  std::function<void()> release_answers;
};

// Any thread may put commands; one thread takes them.
//
// Bounded: an item is refused while `max_items` commands wait. Other commands have no answer. They are
// dropped while kMaxCommands wait, or 2 max_items if that is more. Only a hostile sender reaches this: until
// its lease ends, a sequence whose release is lost holds blocks that others need.
class Mailbox {
 public:
  static constexpr size_t kMaxCommands = size_t{1} << 14;

  // Without a source, the taker sleeps until another thread puts a command.
  explicit Mailbox(size_t max_items, CommandSource source = {})
      : max_items_(max_items), source_(std::move(source)) {}

  enum class Outcome {
    kTaken,
    kFull,         // too many commands wait
    kClosed,       // the first item of its sequence after Close
    kClosedAgain,  // a later one, or one after max_items sequences were refused
  };
  // Moves from the item if it is taken, else leaves it unchanged.
  Outcome PutItem(WorkItem& item);
  // For the other commands.
  void Put(std::function<void(SequenceStore& store)> command);

  // Refuses items from now on. Items put earlier are still taken.
  void Close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }

  // Makes Take return false from now on.
  void Stop();

  // Moves the commands that have arrived to `commands`, after waiting for a command, Stop or `deadline`,
  // which may have passed. `busy`: the taker has unfinished work. Returns false after Stop.
  bool Take(bool busy, absl::Time deadline, std::vector<Command>& commands);

  // Blocks until the queue is empty and the taker is waiting, or until `deadline`.
  void AwaitIdle(absl::Time deadline) {
    std::unique_lock lock(mutex_);
    idle_.wait_until(lock, absl::ToChronoTime(deadline), [this] { return commands_.empty() && !busy_; });
  }

  // Whether the queue is not empty or the taker has unfinished work.
  bool busy() const {
    std::lock_guard lock(mutex_);
    return busy_ || !commands_.empty();
  }

 private:
  // Call it after changing what the taker waits for.
  void WakeTaker();
  void AwaitCommands(absl::Time deadline);

  const size_t max_items_;
  const CommandSource source_;
  // Not absl::Mutex: ThreadSanitizer cannot see into Debian's build of it.
  mutable std::mutex mutex_;
  std::condition_variable changed_;  // a command has arrived, or Stop was called
  std::condition_variable idle_;
  std::vector<Command> commands_;
  bool busy_ = false;                            // the taker has commands or unfinished work
  absl::Time next_poll_ = absl::InfinitePast();  // when a busy taker polls again; only the taker uses it
  std::thread::id taker_;                        // set while the taker waits in a poll
  bool closed_ = false;
  absl::flat_hash_set<SequenceId> refused_;  // sequences refused since Close; at most max_items_
  bool stopped_ = false;
};

}  // namespace outrider
