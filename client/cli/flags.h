// The commands of `outrider` and their flags.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/local_services.h"
#include "client/cli/metrics_page.h"
#include "common/rpc/credentials.h"
#include "outrider/v1/inference.pb.h"

// CLI11's header costs five seconds in each file that includes it.
namespace CLI {
class App;
}

namespace outrider {

inline constexpr char kDefaultAddress[] = "127.0.0.1:7070";
// The default addresses of metrics, by Service.
inline constexpr std::array<const char*, kServices> kDefaultMetrics = {"127.0.0.1:9072", "127.0.0.1:9071",
                                                                       "127.0.0.1:9070"};

// The flags of `outrider up` for its addresses. The coordinator's have the same names as its own flags.
inline constexpr std::array<const char*, kServices> kListenFlags = {"--target-listen", "--draft-listen",
                                                                    "--listen"};
inline constexpr std::array<const char*, kServices> kMetricsListenFlags = {
    "--target-metrics-listen", "--draft-metrics-listen", "--metrics-listen"};
inline constexpr char kHttpListenFlag[] = "--http-listen";

// Flags that are not given stay unset, and the coordinator's defaults apply; the coordinator checks ranges.
struct ChatFlags {
  std::string address;  // empty: start the services
  ChannelSecurity security;
  LocalServicesOptions services;
  v1::GenerateRequest request;  // all but the prompt
  std::string system;           // the system message; empty: none
};

struct GenerateFlags : ChatFlags {
  std::optional<std::string> prompt;
  bool chat = false;  // the prompt is a question
  bool json = false;
  bool compare_plain = false;  // decode it once more without speculation
  std::string timeline;        // file for TimelineSvg; empty: none
};

struct DescribeFlags {
  std::string address = kDefaultAddress;
  ChannelSecurity security;
  bool json = false;
};

struct HealthFlags {
  std::string address = kDefaultAddress;
  std::string service;  // of gRPC's health protocol
  ChannelSecurity security;
};

struct TopFlags {
  std::array<std::string, kServices> metrics = {kDefaultMetrics[0], kDefaultMetrics[1], kDefaultMetrics[2]};
  double interval_seconds = 2;
  bool once = false;
};

struct ExplainFlags {
  std::string prompt;
  std::string target_model, draft_model;  // for FindModel; empty: the shipped pair's
  int draft_tokens = 4;
  int rounds = 3;
  double temperature = 1;
  int top_k = 0;
  double top_p = 1;
  uint64_t seed = 1;
};

struct CompareFlags : ChatFlags {
  std::vector<std::string> prompts;  // empty: this command's own prompts
  uint32_t max_tokens = 64;
  uint32_t samples = 400;
};

void DefineGenerateFlags(CLI::App& command, GenerateFlags& flags);
void DefineChatFlags(CLI::App& command, ChatFlags& flags);
void DefineUpFlags(CLI::App& command, LocalServicesOptions& options);
void DefineDescribeFlags(CLI::App& command, DescribeFlags& flags);
void DefineHealthFlags(CLI::App& command, HealthFlags& flags);
void DefineTopFlags(CLI::App& command, TopFlags& flags);
void DefineExplainFlags(CLI::App& command, ExplainFlags& flags);
void DefineCompareFlags(CLI::App& command, CompareFlags& flags);

// Chooses the draft model if --draft-model is not given: the shipped one for the shipped target, none for
// other targets, whose tokenizers may differ. INVALID_ARGUMENT for flags of a draft model if there is none.
absl::Status SettleDraftModel(LocalServicesOptions& options);

// The commands. Each returns the exit status: 0, or 128 + the signal that stopped it.
absl::StatusOr<int> RunGenerate(const GenerateFlags& flags);
absl::StatusOr<int> RunChat(const ChatFlags& flags);
absl::StatusOr<int> RunUp(const LocalServicesOptions& given);
absl::StatusOr<int> RunDescribe(const DescribeFlags& flags);
// Returns 0 if the service serves, else 1.
absl::StatusOr<int> RunHealth(const HealthFlags& flags);
absl::StatusOr<int> RunTop(const TopFlags& flags);
// 1 if a drafter gives other texts than plain decoding.
absl::StatusOr<int> RunCompare(const CompareFlags& flags);
// Loads both models into this process.
absl::StatusOr<int> RunExplain(const ExplainFlags& flags);

// Appends a message to the conversation that is the request's prompt.
void AddMessage(const std::string& role, const std::string& content, v1::GenerateRequest& request);

// All of standard input, without a final line end.
std::string ReadStandardInput();

// The pages of the three services, by Service; nullopt for one that did not answer.
using MetricsPages = std::array<std::optional<MetricsPage>, kServices>;

// Describes the `seconds` between two fetches, with a line for each subject. A service that is missing in
// either gets a line that says so. A draft gets no line if the coordinator has none.
std::string TopView(const MetricsPages& before, const MetricsPages& after, double seconds);

}  // namespace outrider
