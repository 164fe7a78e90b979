#include "coordinator/api/parse_request.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rpc/drafters.h"
#include "common/rpc/error.h"

namespace outrider {
namespace {

// Whether the parts that a drafter needs are there.
bool IsConfigured(v1::DrafterKind kind, const RequestDefaults& defaults, const v1::ServerInfo* target) {
  switch (kind) {
    case v1::DRAFTER_KIND_MODEL:
      return defaults.has_draft_service;
    case v1::DRAFTER_KIND_NGRAM:
    case v1::DRAFTER_KIND_COPY:
    case v1::DRAFTER_KIND_AUTO:
    case v1::DRAFTER_KIND_NONE:
      return true;
    default:
      break;
  }
  const v1::Proposer proposer = ProposerOf(kind);
  return proposer != v1::PROPOSER_UNSPECIFIED &&
         (target == nullptr || FindProposer(*target, proposer) != nullptr);
}

// The message about a drafter that is not configured.
std::string ProblemWith(v1::DrafterKind kind, const v1::ServerInfo* target) {
  const std::string name = NameOf(kind);
  if (kind == v1::DRAFTER_KIND_MODEL) return "model; no draft service is configured";
  if (target == nullptr || ProposerOf(kind) == v1::PROPOSER_UNSPECIFIED) {
    return absl::StrCat("unknown value ", name);
  }
  std::vector<std::string> proposers;
  for (const v1::ProposerInfo& each : target->proposers()) proposers.push_back(NameOf(each.proposer()));
  return absl::StrCat(
      name, "; proposers of the target: ", proposers.empty() ? "none" : absl::StrJoin(proposers, ", "));
}

// How the target is to propose; UNSPECIFIED: not at all. EAGLE saves the call of the draft service.
v1::Proposer ChooseProposer(v1::DrafterKind drafter, const v1::ServerInfo& target) {
  if (drafter != v1::DRAFTER_KIND_AUTO) return ProposerOf(drafter);
  const bool has_eagle = FindProposer(target, v1::PROPOSER_EAGLE) != nullptr;
  return has_eagle ? v1::PROPOSER_EAGLE : v1::PROPOSER_UNSPECIFIED;
}

}  // namespace

v1::DrafterKind DefaultDrafter(const RequestDefaults& defaults) {
  if (defaults.drafter != v1::DRAFTER_KIND_UNSPECIFIED) return defaults.drafter;
  return defaults.has_draft_service ? v1::DRAFTER_KIND_MODEL : v1::DRAFTER_KIND_NGRAM;
}

absl::Status CheckDrafter(v1::DrafterKind kind, const RequestDefaults& defaults,
                          const v1::ServerInfo* target) {
  if (IsConfigured(kind, defaults, target)) return absl::OkStatus();
  std::vector<std::string> allowed;
  for (int each = 0; each < v1::DrafterKind_ARRAYSIZE; ++each) {
    const auto other = static_cast<v1::DrafterKind>(each);
    if (IsConfigured(other, defaults, target)) allowed.push_back(NameOf(other));
  }
  return FieldError("speculation.drafter", absl::StrJoin(allowed, ", "), ProblemWith(kind, target));
}

absl::Status ParseDrafter(const v1::SpeculationOptions& speculation, const RequestDefaults& defaults,
                          const v1::ServerInfo& target, bool repeatable, Request& request) {
  request.drafter = speculation.drafter();
  if (request.drafter == v1::DRAFTER_KIND_UNSPECIFIED) request.drafter = DefaultDrafter(defaults);
  if (auto status = CheckDrafter(request.drafter, defaults, &target); !status.ok()) return status;
  const int max_draft_tokens = static_cast<int>(target.max_draft_tokens());
  request.adaptive = defaults.adaptive && repeatable && !speculation.has_draft_tokens();
  request.draft_tokens =
      request.adaptive ? max_draft_tokens : std::min(defaults.draft_tokens, max_draft_tokens);
  if (speculation.has_draft_tokens()) {
    if (speculation.draft_tokens() > target.max_draft_tokens()) {
      return FieldError("speculation.draft_tokens", absl::StrCat("0 to ", max_draft_tokens),
                        absl::StrCat(speculation.draft_tokens()));
    }
    request.draft_tokens = static_cast<int>(speculation.draft_tokens());
  }
  if (request.drafter == v1::DRAFTER_KIND_NONE) {
    request.adaptive = false;
    request.draft_tokens = 0;
  }
  // A drafter that gives fewer is not asked for more. AUTO may have more from n-grams.
  if (const v1::ProposerInfo* own = FindProposer(target, ProposerOf(request.drafter)); own != nullptr) {
    request.draft_tokens = std::min(request.draft_tokens, static_cast<int>(own->max_draft_tokens()));
  }
  if (request.draft_tokens > 0) {
    request.params.set_proposer(ChooseProposer(request.drafter, target));
  }
  return absl::OkStatus();
}

}  // namespace outrider
