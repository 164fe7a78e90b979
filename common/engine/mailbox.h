// The queue of commands from other threads to the engine thread, first in, first out.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "common/engine/work_item.h"
#include "common/kv/sequence_id.h"

namespace outrider {

struct ReleaseCommand {
  SequenceId id;
};

struct CancelCommand {
  SequenceId id;
  uint64_t round;
};

using Command = std::variant<WorkItem, ReleaseCommand, CancelCommand>;

// Any thread may put commands; one thread takes them.
//
// Bounded: an item is refused when `max_items` commands wait. Releases and cancels, which have no answer, are
// dropped when twice as many do; a lease frees what a lost release leaves behind.
class Mailbox {
 public:
  explicit Mailbox(size_t max_items) : max_items_(max_items) {}

  enum class Outcome {
    kTaken,
    kFull,         // too many commands wait
    kClosed,       // the first item of its sequence after Close
    kClosedAgain,  // a further one
  };
  // Takes an item over, or leaves it as it is.
  Outcome PutItem(WorkItem& item);
  void Put(ReleaseCommand command) { PutControl(command); }
  void Put(CancelCommand command) { PutControl(command); }

  // Refuses items from now on. Those that were put before are still taken.
  void Close();

  // Makes Take return false from now on.
  void Stop();

  // Moves the commands that have arrived to `commands`. Unless `busy`, first waits for a command, Stop or
  // `deadline`. Returns false after Stop.
  bool Take(bool busy, absl::Time deadline, std::vector<Command>& commands);

  // Blocks until the queue is empty and the taker is waiting, or until `deadline`.
  void AwaitIdle(absl::Time deadline);

  // Whether the queue is not empty or the taker has unfinished work.
  bool busy() const;

 private:
  void PutControl(Command command);

  const size_t max_items_;
  // Not absl::Mutex: ThreadSanitizer cannot see into Debian's build of it.
  mutable std::mutex mutex_;
  std::condition_variable changed_;  // a command has arrived, or Stop was called
  std::condition_variable idle_;
  std::vector<Command> commands_;
  bool busy_ = false;  // the taker has commands or unfinished work
  bool closed_ = false;
  absl::flat_hash_set<SequenceId> refused_;  // since Close; at most max_items_
  bool stopped_ = false;
};

}  // namespace outrider
