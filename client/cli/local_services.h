// The three services as children of this process, on this machine.
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/child_process.h"

namespace outrider {

struct LocalServicesOptions {
  std::string target_model;  // folders; empty: the shipped pair
  std::string draft_model;
  std::string drafter_corpus;  // text for the unigram and bigram drafters; empty: there are none
  std::string dtype = "auto";
  std::string draft_dtype;     // empty: dtype
  std::string device = "cpu";  // or cuda:N
  std::string draft_device;    // empty: device
  // Each of draft and target. They take turns within a stream, so each may have every CPU. 0: one per CPU.
  int threads = 0;
  double draft_budget_seconds = 0;  // that the draft has for a proposal; 0: the coordinator's default
  // 7070-7072, 9070-9072 and 8070; otherwise sockets in a private folder, no metrics and no HTTP.
  bool default_ports = false;
  double drain_seconds = 0;  // that requests have left when Stop is called
};

// Where the coordinator speaks HTTP, with default ports.
inline constexpr char kHttpAddress[] = "127.0.0.1:8070";

enum Service { kTarget, kDraft, kCoordinator };
inline constexpr int kServices = 3;
inline constexpr std::array<const char*, kServices> kServiceNames = {"target", "draft", "coordinator"};

// What they log goes to files in a private temporary folder, which goes when this does. One thread, which
// must live as long.
class LocalServices {
 public:
  // Starts the processes, without waiting for them. NOT_FOUND if a program or a model is not where it should
  // be.
  static absl::StatusOr<std::unique_ptr<LocalServices>> Start(const LocalServicesOptions& options);
  // As Stop, and leaves no file.
  ~LocalServices();

  const std::string& address(Service service) const { return addresses_[service]; }
  const std::string& metrics_address(Service service) const { return metrics_[service]; }
  const std::filesystem::path& folder() const { return folder_; }

  // Whether it listens, weights loaded, in its present life.
  bool Listening(Service service) const;

  // FAILED_PRECONDITION if the coordinator does not take a server, because their tokenizers differ.
  absl::Status Refusal() const;

  // Of one that has ended unasked and was not started again: how, with the reason that its log gives.
  absl::Status Death(Service service);
  absl::Status Restart(Service service);

  // The coordinator first, so that requests can end; what does not end in time is killed.
  void Stop();

 private:
  LocalServices() = default;
  std::string LogPath(Service service) const;

  std::filesystem::path folder_;
  absl::Duration drain_;
  std::array<std::string, kServices> addresses_;
  std::array<std::string, kServices> metrics_;
  std::array<std::vector<std::string>, kServices> commands_;
  std::array<std::unique_ptr<ChildProcess>, kServices> children_;
};

// The reason for an end that a service's log gives: its last error, or else the last lines that are not JSON;
// perhaps none.
std::string ReasonInLog(const std::string& log);

}  // namespace outrider
