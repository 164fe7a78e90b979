// The three services as children of this process, on this machine, and the addresses that they listen on.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/process.h"
#include "client/sdk/client.h"
#include "common/rpc/credentials.h"

namespace outrider {

enum Service { kTarget, kDraft, kCoordinator };
inline constexpr int kServices = 3;
inline constexpr std::array<const char*, kServices> kServiceNames = {"target", "draft", "coordinator"};

// Instead of a draft model: no draft service is started. N-grams of the text are drafted, and what the heads
// propose.
inline constexpr char kNoDraftModel[] = "none";

struct LocalServicesOptions {
  std::string target_model;  // for FindModel; empty: the shipped pair
  std::string draft_model;   // or kNoDraftModel
  // Folders of the target's proposers; an empty name counts for nothing. None: all that the shipped target
  // comes with, where it runs on a CPU or libtorch.
  std::vector<std::string> heads;
  std::string dtype = "auto";
  std::string draft_dtype;        // empty: dtype
  std::string engine = "native";  // or torch
  std::string device = "cpu";     // or cuda:N
  std::string draft_device;       // empty: device
  int frequent_tokens = 0;        // that the draft may propose; 0: all
  // For draft and target each. They take turns within a stream, so each may have every CPU. 0: one per CPU.
  int threads = 0;
  double draft_budget_seconds = 0;  // per proposal; 0: the coordinator's default
  // By Service: HOST:PORT, where port 0 picks one, or unix:PATH; empty: a socket in a private folder.
  std::array<std::string, kServices> listen;
  std::array<std::string, kServices> metrics_listen;  // HOST:PORT; empty: none
  std::string http_listen;                            // of the coordinator, HOST:PORT; empty: none
  std::string api_key_file;  // keys of http_listen, one a line; empty: none is needed
  ServerSecurity security;   // of the coordinator
  bool insecure = false;     // listen also where other hosts can connect
  // Names of the model in OpenAI's API; empty: the target's folder or file.
  std::vector<std::string> served_model_names;
  double drain_seconds = 0;  // for requests in progress when Stop is called

  bool drafts_with_heads() const {
    return draft_model == kNoDraftModel &&
           std::ranges::any_of(heads, [](const auto& h) { return !h.empty(); });
  }
};

// The folder of the shipped models: beside the installation, or beside the source tree that the program was
// built in.
std::filesystem::path ShippedModels();

// What FindModel finds of the given name, or if that is empty the shipped model. Errors name `flag`.
absl::StatusOr<std::string> ModelOr(const std::filesystem::path& shipped, const std::string& given,
                                    const char* flag);

inline constexpr size_t kMaxSocketPath = 107;  // bytes, of sockaddr_un

struct ListenFlag {
  const char* flag;
  std::string address;
};

// Checks that this host can listen there, on all of them at once, and nobody does yet; skips empty addresses.
// UNAVAILABLE naming the flag. Somebody may still come in between.
absl::Status CheckListenFlags(const std::vector<ListenFlag>& flags);

// Returns the address to call: one that stands for all interfaces cannot be called.
std::string ToCall(const std::string& address);

// Coordinator, target and, unless there is none, draft. They log to files in a private temporary folder,
// which goes when this does. One thread, which must live as long.
class LocalServices {
 public:
  // Starts the processes, and does not wait: see Advance. NOT_FOUND without a program or a model.
  static absl::StatusOr<std::unique_ptr<LocalServices>> Start(const LocalServicesOptions& options);
  // Stops as Stop does, and leaves no file.
  ~LocalServices();

  bool has_draft() const { return options_.draft_model != kNoDraftModel; }
  // What drafts where nothing else does, in words.
  const char* drafter() const { return options_.drafts_with_heads() ? "n-grams and heads" : "n-grams"; }

  // Notes which services have begun to serve, and starts the coordinator once its servers' addresses are
  // known: at once, unless their ports are to be picked. Call it until all have served.
  absl::Status Advance();

  // Whether it has ever listened, weights loaded. From then on picked ports are known and stay the same.
  bool served(Service service) const { return served_[service]; }
  const std::string& address(Service service) const { return options_.listen[service]; }
  const std::string& metrics_address(Service service) const { return options_.metrics_listen[service]; }
  const std::string& http_address() const { return options_.http_listen; }
  const std::filesystem::path& folder() const { return folder_; }

  // Whether the coordinator has ever reached that server, as its log says: it may ask its clients for more
  // than this has.
  bool reached(Service service) const;

  // FAILED_PRECONDITION if the coordinator refuses a server, because tokenizers differ.
  absl::Status Refusal() const;

  // How a service ended that ended unasked and was not started again, with the reason that its log gives.
  absl::Status Death(Service service);
  absl::Status Restart(Service service);

  // Stops the coordinator first, so that requests can end; kills what does not end in time.
  void Stop();

 private:
  explicit LocalServices(const LocalServicesOptions& options) : options_(options) {}
  std::string LogPath(Service service) const { return (folder_ / kServiceNames[service]).string() + ".log"; }
  std::vector<std::string> CommandOf(Service service) const;
  // Whether a coordinator that is started now would find its servers.
  bool ServersReachable() const;
  void NoteServing(Service service);

  // As asked for; the addresses as bound once a service has served.
  LocalServicesOptions options_;
  std::filesystem::path programs_;
  std::filesystem::path folder_;
  std::array<std::vector<std::string>, kServices> flags_;  // that addresses do not show in
  std::array<bool, kServices> served_ = {};
  std::array<std::unique_ptr<ChildProcess>, kServices> children_;
};

// The reason that a log gives for the end: its last error, or the last lines that are not JSON; or none.
std::string ReasonInLog(const std::string& log);

// How the first service to end did so; OK while all run.
absl::Status FirstDeath(LocalServices& services);

// Returns once the coordinator has its servers. Errors are those of `check`, which is called again and again,
// DEADLINE_EXCEEDED after two minutes, and CANCELLED with *stop_signal set. Shows progress on a terminal.
absl::Status WaitUntilServing(LocalServices& services, Signals& signals, int* stop_signal,
                              const std::function<absl::Status(LocalServices&)>& check = FirstDeath);

// A client of their coordinator, which serves without TLS and tokens.
absl::StatusOr<Client> ConnectTo(const LocalServices& services);

}  // namespace outrider
