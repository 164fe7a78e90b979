#include "client/cli/local_services.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/gguf/model_path.h"
#include "common/rpc/address.h"
#include "common/spec/status.h"
#include "common/text/json.h"
#include "common/text/strings.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kGrace = absl::Seconds(3);
// The tokens of q that the draft sends. Four times the default raises acceptance (docs/performance.md).
constexpr char kTopN[] = "--top-n=256";
constexpr size_t kLinesShown = 5;

std::vector<std::string> HeadsOf(const LocalServicesOptions& options, const fs::path& shipped) {
  std::vector<std::string> heads = options.heads;
  std::erase(heads, "");
  const bool takes_heads = options.engine != "native" || options.device == "cpu";
  if (!options.heads.empty() || !options.target_model.empty() || !takes_heads) return heads;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(shipped, none)) {
    if (fs::exists(entry.path() / "config.json")) heads.push_back(entry.path().lexically_normal().string());
  }
  std::sort(heads.begin(), heads.end());
  return heads;
}

absl::StatusOr<fs::path> MakePrivateFolder() {
  std::error_code error;
  const fs::path parent = fs::temp_directory_path(error);
  if (error) return absl::NotFoundError("no folder for temporary files: set TMPDIR");
  std::string name = (parent / "outrider-XXXXXX").string();
  if (absl::StrCat(name, "/coordinator.sock").size() > kMaxSocketPath) {
    return Invalid("the path of ", parent.string(), " is too long for a socket: set TMPDIR");
  }
  if (mkdtemp(name.data()) == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("cannot make a folder in ", parent.string(), ": ", strerror(errno)));
  }
  return name;
}

// The last line of a JSON log that reports an event; null if there is none.
nlohmann::json LastEvent(const std::string& log, const std::string& event) {
  nlohmann::json last;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(log, '\n'))) {
    if (!absl::StrContains(line, absl::StrCat("\"event\":\"", event, "\""))) continue;
    nlohmann::json json = ParseJson(line).value_or(nullptr);
    if (json.is_object()) last = std::move(json);  // the line may be half written
  }
  return last;
}

// The flags of each service, besides addresses.
std::array<std::vector<std::string>, kServices> FlagsOf(const LocalServicesOptions& options,
                                                        const std::string& target_model,
                                                        const std::string& draft_model,
                                                        const std::vector<std::string>& heads) {
  const std::string& draft_dtype = options.draft_dtype.empty() ? options.dtype : options.draft_dtype;
  const std::string& draft_device = options.draft_device.empty() ? options.device : options.draft_device;
  const std::string threads = absl::StrCat("--threads=", options.threads);
  std::array<std::vector<std::string>, kServices> flags;
  flags[kTarget] = {"--model",      target_model, "--engine",    options.engine, "--device",
                    options.device, "--dtype",    options.dtype, threads};
  for (const std::string& folder : heads) flags[kTarget].insert(flags[kTarget].end(), {"--heads", folder});
  flags[kDraft] = {"--model",    draft_model, "--engine",  options.engine, "--device",
                   draft_device, "--dtype",   draft_dtype, threads,        kTopN};
  flags[kDraft].push_back(absl::StrCat("--frequent-tokens=", options.frequent_tokens));
  flags[kDraft].push_back(absl::StrCat("--parallel-draft=", options.parallel_draft));
  flags[kCoordinator] = {"--tokenizer", target_model};
  for (const std::string& name : options.served_model_names) {
    flags[kCoordinator].insert(flags[kCoordinator].end(), {"--served-model-name", name});
  }
  if (!options.api_key_file.empty()) {
    const std::string file = absl::StrCat("--http-token-file=", options.api_key_file);
    flags[kCoordinator].push_back(file);
    if (options.security.cert.empty()) flags[kCoordinator].push_back("--http-tls-terminated");
  }
  if (options.drafts_with_heads()) flags[kCoordinator].push_back("--drafter=auto");
  if (options.draft_budget_seconds > 0) {
    flags[kCoordinator].push_back(absl::StrCat("--draft-budget=", options.draft_budget_seconds));
  }
  for (const Service service : {kTarget, kDraft, kCoordinator}) {
    // Passes empty values too: these flags are for the coordinator alone, whatever the environment sets.
    const ServerSecurity security = service == kCoordinator ? options.security : ServerSecurity();
    flags[service].insert(flags[service].end(), {absl::StrCat("--tls-cert=", security.cert),
                                                 absl::StrCat("--tls-key=", security.key),
                                                 absl::StrCat("--tls-client-ca=", security.client_ca),
                                                 absl::StrCat("--token-file=", security.token_file)});
    if (options.insecure && security.cert.empty()) flags[service].push_back("--insecure");
  }
  return flags;
}

constexpr absl::Duration kTimeout = absl::Minutes(2);
// The interval between lines that say what is waited for.
constexpr absl::Duration kReportInterval = absl::Seconds(9);
constexpr absl::Duration kTick = absl::Milliseconds(10);

// A line on standard error that is overwritten, and erased at the end.
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

// OK once the coordinator has its servers. Until then UNAVAILABLE, naming the first that is missing.
absl::Status CheckServing(const LocalServices& services) {
  for (Service service : {kTarget, kDraft, kCoordinator}) {
    if (service == kDraft && !services.has_draft()) continue;
    if (services.served(service)) continue;
    return absl::UnavailableError(absl::StrCat(
        "the ", kServiceNames[service], service == kCoordinator ? " has not started" : " loads its weights"));
  }
  for (Service service : {kTarget, kDraft}) {
    if (service == kDraft && !services.has_draft()) continue;
    if (services.reached(service)) continue;
    return absl::UnavailableError(
        absl::StrCat("the coordinator has not reached the ", kServiceNames[service]));
  }
  return absl::OkStatus();
}

}  // namespace

std::string ToCall(const std::string& address) {
  const std::optional<HostPort> parts = ParseHostPort(address);
  if (parts && parts->host == "0.0.0.0") return absl::StrCat("127.0.0.1:", parts->port);
  if (parts && parts->host == "::") return absl::StrCat("[::1]:", parts->port);
  return address;
}

std::string ReasonInLog(const std::string& log) {
  std::string error;
  std::vector<std::string> cries;  // output that bypasses the log: a crash, a flag that was not understood
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(log, '\n', absl::SkipWhitespace()))) {
    const nlohmann::json json = ParseJson(line).value_or(nullptr);
    if (!json.is_object()) {
      cries.push_back(line);
    } else if (json.value("level", "") == "error") {
      error = json.value("error", json.value("event", ""));
    }
  }
  if (!error.empty()) return error;
  if (cries.size() > kLinesShown) cries.erase(cries.begin(), cries.end() - kLinesShown);
  return absl::StrJoin(cries, "\n");
}

fs::path ShippedModels() {
  const fs::path programs = fs::read_symlink("/proc/self/exe").parent_path();
  const fs::path installed = programs / "../share/outrider/models";
  return (fs::exists(installed) ? installed : programs / "../../../models").lexically_normal();
}

absl::StatusOr<std::string> ModelOr(const fs::path& shipped, const std::string& given, const char* flag) {
  if (!given.empty()) return FindModel(given);
  auto model = FindModel(shipped.string());
  if (model.ok()) return model;
  return absl::NotFoundError(absl::StrCat(model.status().message(), "; give one with ", flag));
}

absl::StatusOr<std::unique_ptr<LocalServices>> LocalServices::Start(const LocalServicesOptions& options) {
  const fs::path programs = fs::read_symlink("/proc/self/exe").parent_path();
  const fs::path shipped = ShippedModels();
  const std::string target_model =
      OUTRIDER_TRY(ModelOr(shipped / "tiny-target", options.target_model, "--target-model"));
  std::unique_ptr<LocalServices> services(new LocalServices(options));
  std::string draft_model = kNoDraftModel;
  if (services->has_draft()) {
    draft_model = OUTRIDER_TRY(ModelOr(shipped / "tiny-draft", options.draft_model, "--draft-model"));
  }
  services->programs_ = programs;
  services->folder_ = OUTRIDER_TRY(MakePrivateFolder());
  for (Service service : {kTarget, kDraft, kCoordinator}) {
    std::string& listen = services->options_.listen[service];
    if (listen.empty()) {
      listen = absl::StrCat(kUnixPrefix, (services->folder_ / kServiceNames[service]).string(), ".sock");
    }
  }
  services->flags_ = FlagsOf(options, target_model, draft_model, HeadsOf(options, shipped / "tiny-heads"));
  OUTRIDER_TRY(services->Advance());
  return services;
}

LocalServices::~LocalServices() {
  Stop();
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

std::vector<std::string> LocalServices::CommandOf(Service service) const {
  std::vector<std::string> command = {
      (programs_ / absl::StrCat("outrider-", kServiceNames[service])).string(),
      absl::StrCat("--listen=", options_.listen[service]),
      "--metrics-listen",
      options_.metrics_listen[service],  // may be empty
      absl::StrCat("--drain=", options_.drain_seconds),
      "--log-format=json"};
  if (service == kCoordinator) {
    command.insert(command.end(), {absl::StrCat("--target=", ToCall(options_.listen[kTarget])), "--draft",
                                   has_draft() ? ToCall(options_.listen[kDraft]) : "", "--http-listen",
                                   options_.http_listen});
  }
  command.insert(command.end(), flags_[service].begin(), flags_[service].end());
  return command;
}

bool LocalServices::ServersReachable() const {
  const auto reachable = [this](Service service) {
    return served_[service] || !absl::EndsWith(options_.listen[service], ":0");
  };
  return reachable(kTarget) && (!has_draft() || reachable(kDraft));
}

absl::Status LocalServices::Advance() {
  for (Service service : {kTarget, kDraft, kCoordinator}) {
    if (children_[service] != nullptr) {
      if (!served_[service]) NoteServing(service);
      continue;
    }
    if (service == kDraft && !has_draft()) continue;
    if (service == kCoordinator && !ServersReachable()) continue;
    OUTRIDER_TRY(Restart(service));
  }
  return absl::OkStatus();
}

void LocalServices::NoteServing(Service service) {
  const char* const event = service == kCoordinator ? "listening" : "serving";
  const nlohmann::json line = LastEvent(ReadFile(LogPath(service)).value_or(""), event);
  if (line.is_null()) return;
  served_[service] = true;
  options_.listen[service] = line.value("listen", options_.listen[service]);
  options_.metrics_listen[service] = line.value("metrics_listen", options_.metrics_listen[service]);
  if (service == kCoordinator) options_.http_listen = line.value("http_listen", options_.http_listen);
}

bool LocalServices::reached(Service service) const {
  const std::string line =
      absl::StrCat("\"event\":\"connected\",\"server\":\"", kServiceNames[service], "\"");
  return absl::StrContains(ReadFile(LogPath(kCoordinator)).value_or(""), line);
}

absl::Status LocalServices::Refusal() const {
  const nlohmann::json refused = LastEvent(ReadFile(LogPath(kCoordinator)).value_or(""), "refused");
  if (refused.is_null()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the models do not go together: ", refused.value("error", "")));
}

absl::Status LocalServices::Death(Service service) {
  ChildProcess* child = children_[service].get();
  if (child == nullptr || child->running()) return absl::OkStatus();
  if (!served_[service]) NoteServing(service);  // it may have served since Advance looked
  const std::string reason = ReasonInLog(ReadFile(LogPath(service)).value_or(""));
  return absl::UnavailableError(absl::StrCat("the ", kServiceNames[service], " service ended with ",
                                             child->HowItEnded(), reason.empty() ? "" : ": ", reason));
}

absl::Status LocalServices::Restart(Service service) {
  // Each run has a log of its own, since Death reports on the present run.
  std::error_code ignored;
  fs::remove(LogPath(service), ignored);
  children_[service] = OUTRIDER_TRY(ChildProcess::Spawn(CommandOf(service), LogPath(service)));
  return absl::OkStatus();
}

void LocalServices::Stop() {
  if (children_[kCoordinator] != nullptr) {
    children_[kCoordinator]->Signal(SIGTERM);
    children_[kCoordinator]->WaitEnded(absl::Seconds(options_.drain_seconds) + kGrace);
  }
  for (Service service : {kTarget, kDraft}) {
    if (children_[service] != nullptr) children_[service]->Signal(SIGTERM);
  }
  for (Service service : {kTarget, kDraft}) {
    if (children_[service] != nullptr) children_[service]->WaitEnded(kGrace);
  }
  for (std::unique_ptr<ChildProcess>& child : children_) child.reset();
}

absl::Status FirstDeath(LocalServices& services) {
  for (Service service : {kTarget, kDraft, kCoordinator}) {
    OUTRIDER_TRY(services.Death(service));
  }
  return absl::OkStatus();
}

absl::Status WaitUntilServing(LocalServices& services, Signals& signals, int* stop_signal,
                              const std::function<absl::Status(LocalServices&)>& check) {
  const absl::Time start = absl::Now();
  absl::Time report = start + kReportInterval;
  ProgressLine progress;
  while (absl::Now() - start < kTimeout) {
    progress.Show(Describe(services, absl::Now() - start));
    OUTRIDER_TRY(services.Advance());
    OUTRIDER_TRY(check(services));
    OUTRIDER_TRY(services.Refusal());
    const absl::Status serving = CheckServing(services);
    if (serving.ok()) return serving;
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

absl::StatusOr<Client> ConnectTo(const LocalServices& services) {
  // The service already listens, so a connection takes no time.
  return Client::Connect(ToCall(services.address(kCoordinator)), {.connect_timeout = absl::Seconds(1)});
}

}  // namespace outrider
