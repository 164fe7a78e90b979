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

// A value of draft_model: no draft service is started. Drafts are n-grams of the text, and proposals of the
// heads if any are named.
inline constexpr char kNoDraftModel[] = "none";

struct LocalServicesOptions {
  std::string target_model;  // for FindModel; empty: the shipped pair
  std::string draft_model;   // or kNoDraftModel
  // Folders of the target's proposers; empty names are ignored. If the list is empty: all that come with the
  // shipped target, if it runs on a CPU or with libtorch.
  std::vector<std::string> heads;
  std::string dtype = "auto";
  std::string draft_dtype;        // empty: dtype
  std::string engine = "native";  // or torch
  std::string device = "cpu";     // or cuda:N
  std::string draft_device;       // empty: device
  int frequent_tokens = 0;        // tokens that the draft may propose; 0: all
  int parallel_draft = 1;         // tokens that the draft drafts in one forward pass
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

// The folder of the shipped models: in the installation, or in the source tree in which the program was
// built.
std::filesystem::path ShippedModels();

// FindModel's result for `given`, or for `shipped` if `given` is empty; the latter's errors name `flag`.
absl::StatusOr<std::string> ModelOr(const std::filesystem::path& shipped, const std::string& given,
                                    const char* flag);

inline constexpr size_t kMaxSocketPath = 107;  // bytes, of sockaddr_un

struct ListenFlag {
  const char* flag;
  std::string address;
};

// Checks that this process can listen on all of these addresses at once, and nobody does yet. Skips empty
// ones. UNAVAILABLE, naming the flag, if not. Another process may still take an address afterwards.
absl::Status CheckListenFlags(const std::vector<ListenFlag>& flags);

// Returns the address to connect to: loopback for an address that stands for all interfaces.
std::string ToCall(const std::string& address);

// The processes of coordinator, target and, unless there is none, draft. They log to files in a private
// temporary folder, which is removed with this object. For one thread, which must outlive it.
class LocalServices {
 public:
  // Starts the processes, and does not wait: see Advance. NOT_FOUND if a program or a model is missing.
  static absl::StatusOr<std::unique_ptr<LocalServices>> Start(const LocalServicesOptions& options);
  // Calls Stop, and removes all files.
  ~LocalServices();

  bool has_draft() const { return options_.draft_model != kNoDraftModel; }
  // The drafter, in words, if there is no draft model.
  const char* drafter() const { return options_.drafts_with_heads() ? "n-grams and heads" : "n-grams"; }

  // Starts target and draft, and the coordinator once their addresses are known: at once, unless their ports
  // are to be picked. Notes which services have begun to serve. Call it until all have.
  absl::Status Advance();

  // Whether the service has ever listened, with weights loaded. Picked ports are known and fixed then.
  bool served(Service service) const { return served_[service]; }
  const std::string& address(Service service) const { return options_.listen[service]; }
  const std::string& metrics_address(Service service) const { return options_.metrics_listen[service]; }
  const std::string& http_address() const { return options_.http_listen; }
  const std::filesystem::path& folder() const { return folder_; }

  // Whether the coordinator has ever reached that server, by its log. To ask the coordinator itself, clients
  // may need credentials that this process lacks.
  bool reached(Service service) const;

  // FAILED_PRECONDITION if the coordinator refuses a server, because tokenizers differ.
  absl::Status Refusal() const;

  // UNAVAILABLE, with the log's reason, if a service ended by itself and was not restarted; else OK.
  absl::Status Death(Service service);
  absl::Status Restart(Service service);

  // Stops the coordinator first, so that requests can end. Kills processes that do not end in time.
  void Stop();

 private:
  explicit LocalServices(const LocalServicesOptions& options) : options_(options) {}
  std::string LogPath(Service service) const { return (folder_ / kServiceNames[service]).string() + ".log"; }
  std::vector<std::string> CommandOf(Service service) const;
  // Whether a coordinator that is started now would find its servers.
  bool ServersReachable() const;
  void NoteServing(Service service);

  // The given options. Once a service has served, its addresses are those that it bound.
  LocalServicesOptions options_;
  std::filesystem::path programs_;
  std::filesystem::path folder_;
  std::array<std::vector<std::string>, kServices> flags_;  // other than addresses
  std::array<bool, kServices> served_ = {};
  std::array<std::unique_ptr<ChildProcess>, kServices> children_;
};

// The reason for the end in a log: its last error, or the last lines that are not JSON; may be empty.
std::string ReasonInLog(const std::string& log);

// The Death of a service that has ended; OK while all run.
absl::Status FirstDeath(LocalServices& services);

// Waits until the coordinator has its servers. Shows progress on a terminal. Errors of `check` (called
// repeatedly), Advance and Refusal; DEADLINE_EXCEEDED after two minutes; CANCELLED with *stop_signal set.
absl::Status WaitUntilServing(LocalServices& services, Signals& signals, int* stop_signal,
                              const std::function<absl::Status(LocalServices&)>& check = FirstDeath);

// A client of the services' coordinator, which must serve without TLS and tokens.
absl::StatusOr<Client> ConnectTo(const LocalServices& services);

}  // namespace outrider
