#include "client/cli/signals.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace outrider {

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

int Signals::Wait(absl::Duration timeout) {
  pollfd fds[] = {{signal_fd_, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
  const bool forever = timeout == absl::InfiniteDuration();
  if (poll(fds, 2, forever ? -1 : static_cast<int>(absl::ToInt64Milliseconds(timeout))) <= 0) return 0;
  signalfd_siginfo info;
  if (read(signal_fd_, &info, sizeof(info)) == sizeof(info)) return static_cast<int>(info.ssi_signo);
  eventfd_t wakes;
  eventfd_read(wake_fd_, &wakes);
  return 0;
}

void Signals::Wake() { eventfd_write(wake_fd_, 1); }

bool Signals::IsStop(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP; }

}  // namespace outrider
