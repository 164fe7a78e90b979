#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/client.h"
#include "client/commands.h"
#include "client/json_output.h"

namespace outrider {
namespace {

std::string Line(const char* name, bool up, const v1::ServerInfo& info) {
  if (!up) return absl::StrFormat("%-12s not reachable\n", name);
  return absl::StrFormat(
      "%-12s %s, version %s: %s on %s, %.1f MB of weights, vocabulary %d, context %d, K up to %d, "
      "%d KV blocks of %d tokens\n",
      name, info.model(), info.version(), info.dtype(), info.device(),
      static_cast<double>(info.weight_bytes()) / 1e6, info.vocab_size(), info.max_context(),
      info.max_draft_tokens(), info.kv_blocks(), info.block_size());
}

const char* StateOf(const v1::DescribeResponse& description) {
  if (!description.has_target()) return "waiting for the target";
  return description.degraded() ? "serving plain, without the draft" : "serving";
}

}  // namespace

int RunDescribe(const DescribeFlags& flags) {
  const absl::StatusOr<Client> client = Client::Connect(flags.address);
  if (!client.ok()) return PrintError(client.status());
  const absl::StatusOr<v1::DescribeResponse> description = client->Describe();
  if (!description.ok()) return PrintError(description.status());
  if (flags.json) {
    std::printf("%s\n", ToJson(*description).c_str());
    return 0;
  }
  const v1::SpeculationOptions& defaults = description->defaults();
  const std::string k =
      defaults.has_draft_tokens() ? absl::StrFormat("%d", defaults.draft_tokens()) : "chosen round by round";
  const std::string coordinator =
      absl::StrFormat("%-12s %s, version %s: %s, %d in progress, K %s, at most %d\n", "coordinator",
                      flags.address, description->version(), StateOf(*description), description->running(), k,
                      description->max_draft_tokens());
  std::printf("%s%s%s", coordinator.c_str(),
              Line("target", description->has_target(), description->target()).c_str(),
              Line("draft", description->has_draft(), description->draft()).c_str());
  return 0;
}

}  // namespace outrider
