#include "client/cli/start_up.h"

#include <unistd.h>

#include <cstdio>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace outrider {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(2);
constexpr absl::Duration kTick = absl::Milliseconds(10);

// One line on standard error that is written over, and gone at the end.
class ProgressLine {
 public:
  ~ProgressLine() {
    if (!shown_.empty()) std::fputs("\r\033[K", stderr);
  }
  void Show(const std::string& line) {
    if (!isatty(STDERR_FILENO) || line == shown_) return;
    shown_ = line;
    std::fprintf(stderr, "\r\033[K%s", line.c_str());
    std::fflush(stderr);
  }

 private:
  std::string shown_;
};

std::string Describe(const LocalServices& services, absl::Duration elapsed) {
  std::string line = "starting";
  for (Service service : {kTarget, kDraft, kCoordinator}) {
    absl::StrAppend(&line, service == kTarget ? " " : ", ", kServiceNames[service], " ",
                    services.Listening(service) ? "up"
                    : service == kCoordinator   ? "..."
                                                : "loading weights");
  }
  return absl::StrFormat("%s  %.1f s", line, absl::ToDoubleSeconds(elapsed));
}

}  // namespace

absl::StatusOr<Client> WaitUntilServing(LocalServices& services, Signals& signals, int* stop_signal) {
  const absl::Time start = absl::Now();
  std::optional<Client> client;
  ProgressLine progress;
  while (absl::Now() - start < kTimeout) {
    progress.Show(Describe(services, absl::Now() - start));
    for (Service service : {kTarget, kDraft, kCoordinator}) {
      if (absl::Status death = services.Death(service); !death.ok()) return death;
    }
    if (absl::Status refusal = services.Refusal(); !refusal.ok()) return refusal;
    if (services.Listening(kTarget) && services.Listening(kDraft) && services.Listening(kCoordinator)) {
      if (!client) {
        auto connected = Client::Connect(services.address(kCoordinator));
        if (!connected.ok()) return connected.status();
        client = *std::move(connected);
      }
      const auto description = client->Describe();
      if (!description.ok()) return description.status();
      if (description->has_target() && description->has_draft()) return *std::move(client);
    }
    const int signal = signals.Wait(kTick);
    if (Signals::IsStop(signal)) {
      *stop_signal = signal;
      return absl::CancelledError("stopped while starting");
    }
  }
  return absl::DeadlineExceededError(absl::StrCat("the services did not start within ",
                                                  absl::FormatDuration(kTimeout), "; ",
                                                  Describe(services, absl::Now() - start)));
}

}  // namespace outrider
