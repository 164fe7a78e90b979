#include <signal.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/flags.h"
#include "client/cli/local_services.h"
#include "client/cli/process.h"
#include "common/rpc/address.h"
#include "common/rpc/listener.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

constexpr double kDrainSeconds = 5;
constexpr absl::Duration kFirstBackoff = absl::Milliseconds(250);
constexpr absl::Duration kLastBackoff = absl::Seconds(10);
// A service that ran for this long is restarted after kFirstBackoff again.
constexpr absl::Duration kHealthy = absl::Seconds(30);

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// The problem of a path; empty: none. Does not bind it, which would take it from a server that listens.
std::string ProblemOfUnixPath(const std::string& path) {
  if (path.size() > kMaxSocketPath) return absl::StrCat("the path is longer than ", kMaxSocketPath, " bytes");
  std::error_code ignored;
  const fs::path parent = fs::absolute(path).parent_path();
  return fs::is_directory(parent, ignored) ? "" : absl::StrCat("no folder ", parent.string());
}

// Restarts services that have ended; the others resend what was lost.
class Supervisor {
 public:
  // Restarts services that have ended, after a backoff. Returns an error, which stops everything, for a
  // service that has never served: its problem has to be fixed first.
  absl::Status Check(LocalServices& services) {
    for (Service service : {kTarget, kDraft, kCoordinator}) {
      Life& life = lives_[service];
      const absl::Status death = services.Death(service);
      if (death.ok()) continue;
      if (!services.served(service)) return death;
      const absl::Time now = absl::Now();
      if (!life.restart_at) {
        life.backoff =
            now - life.started > kHealthy ? kFirstBackoff : std::min(2 * life.backoff, kLastBackoff);
        life.restart_at = now + life.backoff;
        Say(absl::StrCat(death.message(), "; starting it again in ", absl::FormatDuration(life.backoff)));
      } else if (now >= *life.restart_at) {
        OUTRIDER_TRY(services.Restart(service));
        life.started = now;
        life.restart_at.reset();
      }
    }
    return absl::OkStatus();
  }

  bool restarting() const {
    return std::ranges::any_of(lives_, [](const Life& life) { return life.restart_at.has_value(); });
  }

 private:
  struct Life {
    absl::Time started = absl::Now();
    absl::Duration backoff = kFirstBackoff / 2;
    std::optional<absl::Time> restart_at;
  };

  std::array<Life, kServices> lives_;
};

// Checks addresses before anything is started, so that the error can name the flag to change.
absl::Status CheckAddresses(const LocalServicesOptions& options) {
  const bool is_encrypted = !options.security.cert.empty();  // of the coordinator
  std::vector<ListenFlag> requests;                          // served without TLS
  std::vector<ListenFlag> flags;
  for (Service service : {kCoordinator, kDraft, kTarget}) {
    if (service == kDraft && options.draft_model == kNoDraftModel) continue;
    flags.push_back({kListenFlags[service], options.listen[service]});
    if (service != kCoordinator || !is_encrypted) requests.push_back(flags.back());
    flags.push_back({kMetricsListenFlags[service], options.metrics_listen[service]});
  }
  flags.push_back({kHttpListenFlag, options.http_listen});
  if (!options.http_listen.empty() && !is_encrypted) requests.push_back(flags.back());
  OUTRIDER_TRY(CheckListenFlags(flags));
  for (const ListenFlag& flag : requests) {
    if (options.insecure || IsLocalAddress(flag.address)) continue;
    return Invalid(flag.flag, ": ", flag.address,
                   " can be reached from other hosts, and nothing is encrypted there; "
                   "--insecure serves whoever reaches it");
  }
  return absl::OkStatus();
}

// The command to watch these services, with the addresses that differ from its defaults.
std::string TopCommand(const LocalServices& services) {
  std::string command = "outrider top";
  for (Service service : {kCoordinator, kDraft, kTarget}) {
    if (service == kDraft && !services.has_draft()) continue;
    const std::string address = ToCall(services.metrics_address(service));
    if (address.empty() || address == kDefaultMetrics[service]) continue;
    absl::StrAppend(&command, " --", kServiceNames[service], "-metrics ", address);
  }
  return command;
}

void SayHowToUse(const LocalServices& services, const ServerSecurity& security) {
  for (Service service : {kCoordinator, kDraft, kTarget}) {
    if (service == kDraft && !services.has_draft()) continue;
    const std::string& metrics = services.metrics_address(service);
    Say(absl::StrFormat("%-12s %s%s", kServiceNames[service], services.address(service),
                        metrics.empty() ? "" : absl::StrCat("   http://", metrics, "/metrics")));
  }
  if (!services.has_draft()) Say(absl::StrCat("drafter      ", services.drafter(), " (no --draft-model)"));
  std::string address = ToCall(services.address(kCoordinator));
  if (!security.cert.empty()) absl::StrAppend(&address, " --tls-ca ", security.cert);
  if (!security.token_file.empty()) absl::StrAppend(&address, " --tls-token-file ", security.token_file);
  Say(absl::StrCat("logs         ", services.folder().string(), "/*.log\n\noutrider generate --address ",
                   address, " \"It was a dark evening\"\noutrider describe --address ", address));
  if (!services.metrics_address(kCoordinator).empty()) Say(TopCommand(services));
  if (!services.http_address().empty()) {
    Say(absl::StrCat("OpenAI's API: ", security.cert.empty() ? "http" : "https", "://",
                     ToCall(services.http_address()), "/v1"));
  }
  Say(services.has_draft() ? "\nCtrl-C stops all three." : "\nCtrl-C stops both.");
}

}  // namespace

absl::Status CheckListenFlags(const std::vector<ListenFlag>& flags) {
  std::vector<std::unique_ptr<Listener>> listeners;
  for (const auto& [flag, address] : flags) {
    if (address.empty()) continue;
    if (IsUnixPath(address)) {
      const std::string problem = ProblemOfUnixPath(address.substr(strlen(kUnixPrefix)));
      if (problem.empty()) continue;
      return absl::UnavailableError(absl::StrCat(flag, ": cannot listen on ", address, ": ", problem));
    }
    auto listener = Listener::Bind(address);
    if (!listener.ok()) {
      return absl::Status(listener.status().code(), absl::StrCat(flag, ": ", listener.status().message()));
    }
    listeners.push_back(*std::move(listener));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> RunUp(const LocalServicesOptions& given) {
  LocalServicesOptions options = given;
  options.drain_seconds = kDrainSeconds;
  OUTRIDER_TRY(SettleDraftModel(options));
  OUTRIDER_TRY(CheckAddresses(options));
  Signals signals;
  const std::unique_ptr<LocalServices> services = OUTRIDER_TRY(LocalServices::Start(options));
  int stop_signal = 0;
  Supervisor supervisor;
  const auto check = [&supervisor](LocalServices& started) { return supervisor.Check(started); };
  const absl::Status serving = WaitUntilServing(*services, signals, &stop_signal, check);
  if (stop_signal != 0) return 128 + stop_signal;
  OUTRIDER_TRY(serving);
  SayHowToUse(*services, options.security);
  while (!Signals::IsStop(stop_signal)) {
    OUTRIDER_TRY(supervisor.Check(*services));
    stop_signal = signals.Wait(supervisor.restarting() ? absl::Milliseconds(50) : absl::InfiniteDuration());
  }
  Say("stopping");
  // As for the services, SIGTERM is the normal way to stop, and not an error.
  return stop_signal == SIGTERM ? 0 : 128 + stop_signal;
}

}  // namespace outrider
