// The queue of commands from other threads to the engine thread, first in, first out.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <variant>
#include <vector>

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
class Mailbox {
 public:
  void Put(Command command);

  // Makes Take return false from now on.
  void Stop();

  // Moves the commands that have arrived to `commands`. Unless `busy`, first waits for a command, Stop or
  // `deadline`. Returns false after Stop.
  bool Take(bool busy, absl::Time deadline, std::vector<Command>& commands);

  // Blocks until the queue is empty and the taker is waiting, or until `deadline`.
  void AwaitIdle(absl::Time deadline);

 private:
  // Not absl::Mutex: ThreadSanitizer cannot see into Debian's build of it.
  std::mutex mutex_;
  std::condition_variable changed_;  // a command has arrived, or Stop was called
  std::condition_variable idle_;
  std::vector<Command> commands_;
  bool busy_ = false;  // the taker has commands or unfinished work
  bool stopped_ = false;
};

}  // namespace outrider
