// Helpers that the benchmarks of a model pair share.
#pragma once

#include <CLI/CLI.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/cli/local_services.h"
#include "client/cli/process.h"
#include "client/sdk/client.h"
#include "common/text/json.h"

namespace outrider {

// Selects the prompts: a set of a JSON file {NAME: {"source": TEXT, "prompts": [TEXT, ...]}, ...}.
struct PromptFlags {
  std::string file = "bench/prompts.json";
  std::string set = "prose";
};

inline absl::StatusOr<std::vector<std::string>> LoadPrompts(const PromptFlags& flags) {
  const auto sets = JsonObjectIn<nlohmann::ordered_json>(flags.file);
  if (!sets.ok()) return sets.status();
  const auto set = sets->value(flags.set, nlohmann::ordered_json::object());
  std::vector<std::string> prompts;
  if (set.is_object()) prompts = set.value("prompts", prompts);
  if (prompts.empty()) {
    return absl::NotFoundError(absl::StrCat(flags.file, " has no set of prompts named ", flags.set));
  }
  return prompts;
}

inline std::string MachineName() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

inline v1::GenerateRequest MakeRequest(const std::string& prompt, double temperature, int k, uint64_t seed,
                                       int max_tokens) {
  v1::GenerateRequest request;
  request.set_text(prompt);
  request.mutable_sampling()->set_temperature(static_cast<float>(temperature));
  request.set_seed(seed);
  request.mutable_speculation()->set_draft_tokens(static_cast<uint32_t>(k));
  request.mutable_stop()->set_max_tokens(static_cast<uint32_t>(max_tokens));
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

// Lets the coordinator's policy choose K, as for a request without one. A request with a seed has a fixed K,
// so the seed is cleared too.
inline void LeaveKToPolicy(v1::GenerateRequest& request) {
  request.mutable_speculation()->clear_draft_tokens();
  request.clear_seed();
}

inline void AddComputeFlags(CLI::App& app, LocalServicesOptions& services) {
  app.add_option("--engine", services.engine, "native or torch")->capture_default_str();
  app.add_option("--device", services.device, "cpu or cuda:N")->capture_default_str();
  app.add_option("--draft-device", services.draft_device, "default: the target's");
  app.add_option("--dtype", services.dtype, "auto, float32, bfloat16 or int8; fp8 on a GPU")
      ->capture_default_str();
  app.add_option("--draft-dtype", services.draft_dtype, "default: the target's");
  app.add_option("--frequent-tokens", services.frequent_tokens, "that the draft proposes; 0: all")
      ->capture_default_str();
  app.add_option("--threads", services.threads, "threads of draft and target, each; 0: one per CPU")
      ->capture_default_str();
}

inline void AddPairFlags(CLI::App& app, LocalServicesOptions& services) {
  app.add_option("--target-model", services.target_model, "folder; default: the shipped pair");
  app.add_option("--draft-model", services.draft_model, "folder; default: the shipped pair");
  app.add_option("--heads", services.heads, "folder of heads of the target; default: the shipped pair's");
  AddComputeFlags(app, services);
}

inline void AddPromptFlags(CLI::App& app, PromptFlags& prompts) {
  app.add_option("--prompts", prompts.file, "JSON file with named sets of texts")
      ->check(CLI::ExistingFile)
      ->capture_default_str();
  app.add_option("--set", prompts.set, "the set of prompts to use")->capture_default_str();
}

// Starts a report with machine and models, and prints them.
inline absl::StatusOr<nlohmann::ordered_json> BeginReport(const Client& client) {
  const absl::StatusOr<v1::DescribeResponse> description = client.Describe();
  if (!description.ok()) return description.status();
  const v1::ServerInfo& target = description->target();
  const v1::ServerInfo& draft = description->draft();
  nlohmann::ordered_json report = {{"machine", MachineName()}};
  for (const auto& [name, server] : {std::pair("target", &target), {"draft", &draft}}) {
    report[name] = {{"model", server->model()}, {"dtype", server->dtype()}, {"device", server->device()}};
  }
  absl::PrintF("%s; target %s, %s on %s; draft %s, %s on %s\n", MachineName(), target.model(), target.dtype(),
               target.device(), draft.model(), draft.dtype(), draft.device());
  return report;
}

// A client of a coordinator that has found both of its services. `models` is their process if they share one.
inline absl::StatusOr<Client> ConnectWhenServing(ChildProcess& coordinator, const std::string& address,
                                                 ChildProcess* models = nullptr) {
  auto client = Client::Connect(address);
  while (client.ok() && coordinator.running() && (models == nullptr || models->running())) {
    const auto description = client->Describe();
    if (!description.ok()) return description.status();
    if (description->has_target() && description->has_draft()) return client;
    absl::SleepFor(absl::Milliseconds(10));
  }
  if (!coordinator.running()) {
    return absl::UnavailableError(absl::StrCat("the coordinator ended with ", coordinator.HowItEnded()));
  }
  if (models != nullptr && !models->running()) {
    return absl::UnavailableError(absl::StrCat("the models' process ended with ", models->HowItEnded()));
  }
  return client;
}

// The three running services and a client.
struct RunningPair {
  static absl::StatusOr<RunningPair> Start(const LocalServicesOptions& options) {
    Signals signals;
    auto services = LocalServices::Start(options);
    if (!services.ok()) return services.status();
    int stop_signal = 0;
    if (absl::Status status = WaitUntilServing(**services, signals, &stop_signal); !status.ok())
      return status;
    auto client = ConnectTo(**services);
    if (!client.ok()) return client.status();
    return RunningPair{*std::move(services), *std::move(client)};
  }

  std::unique_ptr<LocalServices> services;
  Client client;
};

}  // namespace outrider
