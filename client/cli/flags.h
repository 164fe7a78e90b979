// The flags of the commands, and the request that they make.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/local_services.h"
#include "common/rpc/credentials.h"
#include "outrider/v1/inference.pb.h"

// CLI11's header costs five seconds in each file that includes it.
namespace CLI {
class App;
}

namespace outrider {

inline constexpr char kDefaultAddress[] = "127.0.0.1:7070";
// By Service.
inline constexpr std::array<const char*, kServices> kDefaultMetrics = {"127.0.0.1:9072", "127.0.0.1:9071",
                                                                       "127.0.0.1:9070"};

// The flags of `outrider up` that say where it listens; the coordinator's are named as its own.
inline constexpr std::array<const char*, kServices> kListenFlags = {"--target-listen", "--draft-listen",
                                                                    "--listen"};
inline constexpr std::array<const char*, kServices> kMetricsListenFlags = {
    "--target-metrics-listen", "--draft-metrics-listen", "--metrics-listen"};
inline constexpr char kHttpListenFlag[] = "--http-listen";

// Flags that are not given stay unset, and the coordinator's defaults apply; the coordinator checks ranges.
struct GenerateFlags {
  std::optional<std::string> prompt;
  std::string address;  // empty: start the services
  ChannelSecurity security;
  LocalServicesOptions services;
  std::optional<float> temperature;
  std::optional<uint32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<float> presence_penalty;
  std::optional<float> frequency_penalty;
  std::optional<uint32_t> max_tokens;
  std::optional<uint32_t> min_tokens;
  std::optional<uint64_t> seed;
  std::optional<uint32_t> n;
  std::optional<uint32_t> beam_width;
  std::optional<uint32_t> beam_draft_width;
  std::optional<double> length_penalty;
  std::string beam_stop;  // empty: auto
  std::vector<std::string> stop;
  bool ignore_eos = false;
  std::optional<uint32_t> draft_tokens;
  std::optional<uint32_t> draft_top_n;
  std::string drafter;  // empty: the coordinator's default
  std::optional<float> draft_temperature;
  std::optional<float> lenience;
  std::optional<uint32_t> logprobs;
  std::optional<uint32_t> prompt_logprobs;
  std::string rule;      // empty: the coordinator's default
  std::string schedule;  // likewise
  std::string tree;
  std::string sibling_order;
  bool trace = false;
  bool json = false;
};

struct DescribeFlags {
  std::string address = kDefaultAddress;
  ChannelSecurity security;
  bool json = false;
};

struct TopFlags {
  std::array<std::string, kServices> metrics = {kDefaultMetrics[0], kDefaultMetrics[1], kDefaultMetrics[2]};
  double interval_seconds = 2;
  bool once = false;
};

void DefineGenerateFlags(CLI::App& command, GenerateFlags& flags);
void DefineUpFlags(CLI::App& command, LocalServicesOptions& options);
void DefineDescribeFlags(CLI::App& command, DescribeFlags& flags);
void DefineTopFlags(CLI::App& command, TopFlags& flags);

// Settles --draft-model where it is not given: the shipped draft model goes with the shipped target, and
// another target gets none, since the tokenizers would differ. INVALID_ARGUMENT for flags of a draft model
// that is not there.
absl::Status SettleDraftModel(LocalServicesOptions& options);

v1::GenerateRequest MakeRequest(const GenerateFlags& flags, const std::string& prompt);

}  // namespace outrider
