#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/flags.h"
#include "client/cli/local_services.h"
#include "client/cli/process.h"
#include "common/rpc/address.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

constexpr double kDrainSeconds = 5;
constexpr absl::Duration kFirstBackoff = absl::Milliseconds(250);
constexpr absl::Duration kLastBackoff = absl::Seconds(10);
// After a life this long the next end counts as the first again.
constexpr absl::Duration kHealthy = absl::Seconds(30);

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// Returns a socket that listens there, or -1 with errno. Without SO_REUSEPORT, as in the services.
int Listen(const addrinfo& where) {
  const int fd = socket(where.ai_family, where.ai_socktype | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(fd, where.ai_addr, where.ai_addrlen) == 0 && listen(fd, 1) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

// Listens on the first usable address of the name; adds the socket. Returns empty, or what is wrong.
std::string TryHostPort(const std::string& address, std::vector<int>& sockets) {
  const std::optional<HostPort> parts = ParseHostPort(address);
  if (!parts) return "it is not HOST:PORT";
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(parts->host.c_str(), absl::StrCat(parts->port).c_str(), &hints, &found);
      error != 0) {
    return gai_strerror(error);
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const int fd = Listen(*each);
    if (fd < 0) continue;
    sockets.push_back(fd);
    return "";
  }
  return strerror(errno);
}

std::string TryUnixPath(const std::string& path) {
  if (path.size() > kMaxSocketPath) return absl::StrCat("the path is longer than ", kMaxSocketPath, " bytes");
  std::error_code ignored;
  const fs::path parent = fs::absolute(path).parent_path();
  return fs::is_directory(parent, ignored) ? "" : absl::StrCat("no folder ", parent.string());
}

// Restarts services that have ended; the others resend what was lost.
class Supervisor {
 public:
  // Looks for services that have ended. An error, which stops everything, comes from one that has never
  // served: its complaint has to be mended first.
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

// Checked before anything is started, since nothing else could say so well which flag to mend.
absl::Status CheckAddresses(const LocalServicesOptions& options) {
  std::vector<ListenFlag> requests;  // where requests are served
  std::vector<ListenFlag> flags;
  for (Service service : {kCoordinator, kDraft, kTarget}) {
    if (service == kDraft && options.draft_model == kNoDraftModel) continue;
    requests.push_back({kListenFlags[service], options.listen[service]});
    flags.push_back(requests.back());
    flags.push_back({kMetricsListenFlags[service], options.metrics_listen[service]});
  }
  flags.push_back({kHttpListenFlag, options.http_listen});
  if (!options.http_listen.empty()) requests.push_back(flags.back());
  OUTRIDER_TRY(CheckListenFlags(flags));
  for (const ListenFlag& flag : requests) {
    if (options.insecure || IsLocalAddress(flag.address)) continue;
    return Invalid(flag.flag, ": ", flag.address,
                   " can be reached from other hosts, and nothing is encrypted; "
                   "--insecure serves whoever reaches it");
  }
  return absl::OkStatus();
}

// Adds the addresses that it does not know by itself.
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

void SayHowToUse(const LocalServices& services) {
  for (Service service : {kCoordinator, kDraft, kTarget}) {
    if (service == kDraft && !services.has_draft()) continue;
    const std::string& metrics = services.metrics_address(service);
    Say(absl::StrFormat("%-12s %s%s", kServiceNames[service], services.address(service),
                        metrics.empty() ? "" : absl::StrCat("   http://", metrics, "/metrics")));
  }
  if (!services.has_draft()) Say("drafter      n-grams (no --draft-model)");
  const std::string address = ToCall(services.address(kCoordinator));
  Say(absl::StrCat("logs         ", services.folder().string(), "/*.log\n\noutrider generate --address ",
                   address, " \"It was a dark evening\"\noutrider describe --address ", address));
  if (!services.metrics_address(kCoordinator).empty()) Say(TopCommand(services));
  if (!services.http_address().empty()) {
    Say(absl::StrCat("OpenAI's API: http://", ToCall(services.http_address()), "/v1"));
  }
  Say(services.has_draft() ? "\nCtrl-C stops all three." : "\nCtrl-C stops both.");
}

}  // namespace

absl::Status CheckListenFlags(const std::vector<ListenFlag>& flags) {
  std::vector<int> sockets;
  const absl::Cleanup close_all = [&sockets] {
    for (int fd : sockets) close(fd);
  };
  for (const auto& [flag, address] : flags) {
    if (address.empty()) continue;
    const std::string problem = IsUnixPath(address) ? TryUnixPath(address.substr(strlen(kUnixPrefix)))
                                                    : TryHostPort(address, sockets);
    if (!problem.empty()) {
      return absl::UnavailableError(absl::StrCat(flag, ": cannot listen on ", address, ": ", problem));
    }
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
  const absl::StatusOr<Client> serving = WaitUntilServing(*services, signals, &stop_signal, check);
  if (stop_signal != 0) return 128 + stop_signal;
  OUTRIDER_TRY(serving.status());
  SayHowToUse(*services);
  while (!Signals::IsStop(stop_signal)) {
    OUTRIDER_TRY(supervisor.Check(*services));
    stop_signal = signals.Wait(supervisor.restarting() ? absl::Milliseconds(50) : absl::InfiniteDuration());
  }
  Say("stopping");
  return 128 + stop_signal;
}

}  // namespace outrider
