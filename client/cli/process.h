// Processes that this one starts, and signals as events that a thread waits for.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace outrider {

// A child process in a group of its own: Ctrl-C reaches only the parent, which stops its children in order.
// The kernel kills a child whose parent dies. For the thread that calls Spawn, which must outlive the child.
class ChildProcess {
 public:
  // argv[0] is the program's path. Its output is appended to the file `log`. NOT_FOUND without the program.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Spawn(const std::vector<std::string>& argv,
                                                             const std::string& log);
  // Kills it if it runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  bool running();
  // How it ended: "exit status 1", "signal 9 (Killed)". Call only after it has ended.
  std::string HowItEnded() const;

  void Signal(int signal);
  // True if it ended within the time.
  bool WaitEnded(absl::Duration timeout);

 private:
  ChildProcess(pid_t pid, int pid_fd) : pid_(pid), pid_fd_(pid_fd) {}

  const pid_t pid_;
  const int pid_fd_;
  std::optional<int> status_;  // of waitpid
};

// From its creation on, Wait returns SIGINT, SIGTERM, SIGHUP and SIGCHLD, and SIGPIPE is ignored, so writes
// fail instead. Create only one, before any other thread exists. Wait is for one thread, Wake for any.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // Returns the next signal, or 0 after `timeout`, after a call of Wake, or once there is something to read
  // from `input`, unless that is -1.
  int Wait(absl::Duration timeout = absl::InfiniteDuration(), int input = -1);
  void Wake();

  static bool IsStop(int signal);

 private:
  int signal_fd_;
  int wake_fd_;
};

// Whether a read would not block: there is input, or its end.
bool HasInput(int fd);

}  // namespace outrider
