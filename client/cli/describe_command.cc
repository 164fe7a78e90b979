#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/flags.h"
#include "client/cli/render.h"
#include "client/sdk/client.h"
#include "common/rpc/drafters.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

std::string Proposers(const v1::ServerInfo& info) {
  std::vector<std::string> proposers;
  for (const v1::ProposerInfo& each : info.proposers()) {
    proposers.push_back(absl::StrCat(NameOf(each.proposer()), " (K up to ", each.max_draft_tokens(), ")"));
  }
  return proposers.empty() ? "" : absl::StrCat(", proposes by ", absl::StrJoin(proposers, ", "));
}

std::string Line(const char* name, bool up, const v1::ServerInfo& info) {
  if (!up) return absl::StrFormat("%-12s not reachable\n", name);
  return absl::StrFormat(
      "%-12s %s, version %s: %s on %s%s, %.1f MB of weights, vocabulary %d, context %d, K up to %d, "
      "trees of up to %d tokens, %d KV blocks of %d tokens%s\n",
      name, info.model(), info.version(), info.dtype(), info.device(),
      info.engine() == "torch" ? " by libtorch, exact up to rounding" : "",
      static_cast<double>(info.weight_bytes()) / 1e6, info.vocab_size(), info.max_context(),
      info.max_draft_tokens(), info.max_tree_nodes(), info.kv_blocks(), info.block_size(), Proposers(info));
}

// The line of one server of several, or of one that is not used, with the reason.
std::string StateLine(const v1::ServerState& server) {
  const std::string name = absl::StrFormat("  %-10s %s: ", server.role(), server.address());
  if (!server.problem().empty()) return absl::StrCat(name, "not used: ", server.problem(), "\n");
  if (!server.up()) return absl::StrCat(name, "not reachable\n");
  return absl::StrCat(name, server.going_away() ? "going away" : "up", ", ", server.sequences(),
                      " sequences, load ", server.load(), "\n");
}

std::string StateLines(const v1::DescribeResponse& description) {
  std::map<std::string, int> servers;
  for (const v1::ServerState& server : description.servers()) ++servers[server.role()];
  std::string lines;
  for (const v1::ServerState& server : description.servers()) {
    if (servers[server.role()] > 1 || !server.problem().empty()) lines += StateLine(server);
  }
  return lines;
}

// Acceptance and canary since the start; empty before the first draft.
std::string TotalsLine(const v1::SpeculationTotals& totals) {
  if (totals.drafts() == 0) return "";
  std::string line =
      absl::StrFormat("%-12s %.1f %% of %d drafted tokens accepted, %.2f tokens a call of the target",
                      "so far", 100 * Quotient(totals.accepted(), totals.drafted()), totals.drafted(),
                      Quotient(totals.emitted(), totals.rounds()));
  if (totals.expected_accepted() > 0) {
    absl::StrAppendFormat(&line, ", observed / expected acceptance %.3f",
                          Quotient(totals.observed_accepted(), totals.expected_accepted()));
  }
  return line + "\n";
}

const char* StateOf(const v1::DescribeResponse& description) {
  if (!description.has_target()) return "waiting for a target";
  return description.degraded() ? "serving plain, without the draft" : "serving";
}

}  // namespace

absl::StatusOr<int> RunDescribe(const DescribeFlags& flags) {
  const Client client = OUTRIDER_TRY(Client::Connect(flags.address, {.security = flags.security}));
  const v1::DescribeResponse description = OUTRIDER_TRY(client.Describe());
  if (flags.json) {
    std::printf("%s\n", ToJson(description).c_str());
    return 0;
  }
  const v1::SpeculationOptions& defaults = description.defaults();
  const std::string k =
      defaults.has_draft_tokens() ? absl::StrFormat("%d", defaults.draft_tokens()) : "chosen round by round";
  const std::string coordinator = absl::StrFormat(
      "%-12s %s, version %s: %s, %d in progress, K %s, at most %d\n", "coordinator", flags.address,
      description.version(), StateOf(description), description.running(), k, description.max_draft_tokens());
  // Without a draft service, there is no draft to describe.
  const bool draft = description.has_draft() || description.degraded();
  std::printf("%s%s%s%s%s", coordinator.c_str(),
              Line("target", description.has_target(), description.target()).c_str(),
              draft ? Line("draft", description.has_draft(), description.draft()).c_str() : "",
              StateLines(description).c_str(), TotalsLine(description.totals()).c_str());
  return 0;
}

}  // namespace outrider
