#include "client/cli/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace outrider {
namespace {

// Runs in the child between fork and exec, so it makes only async-signal-safe calls.
[[noreturn]] void Become(char* const* argv, char* const* environment, int log, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the parent died before prctl
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  close_range(3, ~0U, 0);
  execve(argv[0], argv, environment);
  _exit(127);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Spawn(const std::vector<std::string>& argv,
                                                                  const std::string& log) {
  if (access(argv[0].c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat("no program ", argv[0], ": build it first"));
  }
  std::vector<char*> arguments;
  arguments.reserve(argv.size() + 1);
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const int log_fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log_fd < 0) return absl::UnavailableError(absl::StrCat("cannot write ", log, ": ", strerror(errno)));
  // The environment's values of flags are for this program, which passes flags to its children itself.
  // (OUTRIDER_PLUGIN_PATH is no flag.)
  std::vector<char*> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const bool is_flag =
        absl::StartsWith(*variable, "OUTRIDER_") && !absl::StartsWith(*variable, "OUTRIDER_PLUGIN_PATH=");
    if (!is_flag) environment.push_back(*variable);
  }
  environment.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) Become(arguments.data(), environment.data(), log_fd, parent);
  const int error = errno;
  close(log_fd);
  if (pid < 0) return absl::UnavailableError(absl::StrCat("cannot start ", argv[0], ": ", strerror(error)));
  // The wrapper of this call has no C linkage in the C library of Debian 12.
  const auto pid_fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  return std::unique_ptr<ChildProcess>(new ChildProcess(pid, pid_fd));
}

ChildProcess::~ChildProcess() {
  Signal(SIGKILL);
  if (!status_) waitpid(pid_, nullptr, 0);
  close(pid_fd_);
}

bool ChildProcess::running() {
  int status = 0;
  if (!status_ && waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
  return !status_;
}

std::string ChildProcess::HowItEnded() const {
  if (WIFSIGNALED(*status_)) {
    return absl::StrCat("signal ", WTERMSIG(*status_), " (", strsignal(WTERMSIG(*status_)), ")");
  }
  return absl::StrCat("exit status ", WEXITSTATUS(*status_));
}

void ChildProcess::Signal(int signal) {
  if (running()) kill(pid_, signal);
}

bool ChildProcess::WaitEnded(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (running()) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    pollfd ended = {pid_fd_, POLLIN, 0};
    poll(&ended, 1, static_cast<int>(std::max<int64_t>(absl::ToInt64Milliseconds(left), 1)));
  }
  return true;
}

Signals::Signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

Signals::~Signals() {
  close(signal_fd_);
  close(wake_fd_);
}

int Signals::Wait(absl::Duration timeout, int input) {
  pollfd fds[] = {{signal_fd_, POLLIN, 0}, {wake_fd_, POLLIN, 0}, {input, POLLIN, 0}};
  const bool forever = timeout == absl::InfiniteDuration();
  if (poll(fds, 3, forever ? -1 : static_cast<int>(absl::ToInt64Milliseconds(timeout))) <= 0) return 0;
  signalfd_siginfo info;
  if (read(signal_fd_, &info, sizeof(info)) == sizeof(info)) return static_cast<int>(info.ssi_signo);
  eventfd_t wakes;
  eventfd_read(wake_fd_, &wakes);
  return 0;
}

void Signals::Wake() { eventfd_write(wake_fd_, 1); }

bool HasInput(int fd) {
  pollfd input = {fd, POLLIN, 0};
  return poll(&input, 1, 0) == 1;
}

bool Signals::IsStop(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP; }

}  // namespace outrider
