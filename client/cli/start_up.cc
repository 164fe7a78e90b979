#include "client/cli/start_up.h"

#include <unistd.h>

#include <cstdio>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/listen_address.h"

namespace outrider {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(2);
// From one line about what is waited for to the next.
constexpr absl::Duration kReportInterval = absl::Seconds(9);
constexpr absl::Duration kTick = absl::Milliseconds(10);
// What listens is connected to at once.
constexpr absl::Duration kConnectTimeout = absl::Seconds(1);

// One line on standard error that is written over, and gone at the end.
class ProgressLine {
 public:
  ~ProgressLine() { Clear(); }
  void Clear() {
    if (!std::exchange(shown_, "").empty()) std::fputs("\r\033[K", stderr);
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
    if (service == kDraft && !services.has_draft()) continue;
    absl::StrAppend(&line, service == kTarget ? " " : ", ", kServiceNames[service], " ",
                    services.served(service)  ? "up"
                    : service == kCoordinator ? "..."
                                              : "loading weights");
  }
  return absl::StrFormat("%s  %.1f s", line, absl::ToDoubleSeconds(elapsed));
}

// OK once the coordinator has its servers. UNAVAILABLE, with what is waited for, until then.
absl::Status CheckServing(const LocalServices& services, std::optional<Client>& client) {
  for (Service service : {kTarget, kDraft, kCoordinator}) {
    if (service == kDraft && !services.has_draft()) continue;
    if (services.served(service)) continue;
    return absl::UnavailableError(absl::StrCat(
        "the ", kServiceNames[service], service == kCoordinator ? " has not started" : " loads its weights"));
  }
  if (!client) {
    auto connected =
        Client::Connect(ToCall(services.address(kCoordinator)), {.connect_timeout = kConnectTimeout});
    if (!connected.ok()) return connected.status();
    client = *std::move(connected);
  }
  const auto description = client->Describe();
  if (!description.ok()) return description.status();
  if (!description->has_target()) return absl::UnavailableError("the coordinator has not reached the target");
  if (services.has_draft() && !description->has_draft()) {
    return absl::UnavailableError("the coordinator has not reached the draft");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FirstDeath(LocalServices& services) {
  for (Service service : {kTarget, kDraft, kCoordinator}) {
    if (absl::Status death = services.Death(service); !death.ok()) return death;
  }
  return absl::OkStatus();
}

absl::StatusOr<Client> WaitUntilServing(LocalServices& services, Signals& signals, int* stop_signal,
                                        const std::function<absl::Status(LocalServices&)>& check) {
  const absl::Time start = absl::Now();
  absl::Time report = start + kReportInterval;
  std::optional<Client> client;
  ProgressLine progress;
  while (absl::Now() - start < kTimeout) {
    progress.Show(Describe(services, absl::Now() - start));
    if (absl::Status status = services.Advance(); !status.ok()) return status;
    if (absl::Status status = check(services); !status.ok()) return status;
    if (absl::Status refusal = services.Refusal(); !refusal.ok()) return refusal;
    const absl::Status serving = CheckServing(services, client);
    if (serving.ok()) return *std::move(client);
    // Whether a coordinator that does not answer has died is for `check` to say.
    if (!absl::IsUnavailable(serving)) return serving;
    if (absl::Now() >= report) {
      report += kReportInterval;
      progress.Clear();
      std::fprintf(stderr, "outrider: waiting for %.0f s: %s\n", absl::ToDoubleSeconds(absl::Now() - start),
                   std::string(serving.message()).c_str());
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
