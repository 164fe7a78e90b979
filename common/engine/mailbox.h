// What other threads ask of the engine thread, in the order in which they ask.
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

// Any thread may put; one thread takes.
class Mailbox {
 public:
  void Put(Command command);

  // From now on Take returns false.
  void Stop();

  // Fills `commands` with what has arrived. Unless `busy` it waits until something does, Stop is called, or
  // `deadline` has come. False after Stop.
  bool Take(bool busy, absl::Time deadline, std::vector<Command>& commands);

  // Until nothing has arrived and the taker waits, or the deadline has come.
  void AwaitIdle(absl::Time deadline);

 private:
  // Not absl::Mutex: thread sanitizer cannot see into Debian's build of it.
  std::mutex mutex_;
  std::condition_variable changed_;  // something has arrived, or Stop was called
  std::condition_variable idle_;
  std::vector<Command> commands_;
  bool busy_ = false;  // the taker has commands or work in hand
  bool stopped_ = false;
};

}  // namespace outrider
