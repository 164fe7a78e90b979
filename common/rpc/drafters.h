// Drafters and their names, and which of them are the target itself. Nothing else maps between the protocol's
// kinds of drafters, its proposers, and those of the engine.
#pragma once

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "common/engine/sequence_params.h"
#include "common/rpc/names.h"
#include "outrider/v1/inference.pb.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

inline std::string NameOf(v1::DrafterKind kind) {
  return NameWithoutPrefix("DRAFTER_KIND_", v1::DrafterKind_Name(kind), kind);
}
inline std::string NameOf(v1::Proposer proposer) {
  return NameWithoutPrefix("PROPOSER_", v1::Proposer_Name(proposer), proposer);
}

// The drafter with that name; UNSPECIFIED if there is none.
inline v1::DrafterKind DrafterFromName(const std::string& name) {
  v1::DrafterKind kind = v1::DRAFTER_KIND_UNSPECIFIED;
  v1::DrafterKind_Parse("DRAFTER_KIND_" + absl::AsciiStrToUpper(name), &kind);
  return kind;
}
// All names that DrafterFromName knows.
inline std::vector<std::string> DrafterNames() {
  std::vector<std::string> names;
  for (int each = v1::DRAFTER_KIND_UNSPECIFIED + 1; each < v1::DrafterKind_ARRAYSIZE; ++each) {
    if (v1::DrafterKind_IsValid(each)) names.push_back(NameOf(static_cast<v1::DrafterKind>(each)));
  }
  return names;
}

// A drafter that is the target itself, which has one name everywhere.
struct OwnDrafter {
  v1::DrafterKind drafter;  // of a request
  v1::Proposer proposer;    // of a sequence
  ProposerKind kind;        // in the engine
};
inline constexpr OwnDrafter kOwnDrafters[] = {
    {v1::DRAFTER_KIND_MEDUSA, v1::PROPOSER_MEDUSA, ProposerKind::kMedusa},
    {v1::DRAFTER_KIND_BLOCKWISE, v1::PROPOSER_BLOCKWISE, ProposerKind::kBlockwise},
    {v1::DRAFTER_KIND_EAGLE, v1::PROPOSER_EAGLE, ProposerKind::kEagle},
    {v1::DRAFTER_KIND_LAYER_SKIP, v1::PROPOSER_LAYER_SKIP, ProposerKind::kLayerSkip},
    {v1::DRAFTER_KIND_PASS, v1::PROPOSER_PASS, ProposerKind::kPass}};
static_assert(std::size(kOwnDrafters) == kProposerNames.size());

// UNSPECIFIED if the drafter is not the target.
inline v1::Proposer ProposerOf(v1::DrafterKind drafter) {
  const OwnDrafter* own = std::ranges::find(kOwnDrafters, drafter, &OwnDrafter::drafter);
  return own == std::end(kOwnDrafters) ? v1::PROPOSER_UNSPECIFIED : own->proposer;
}
inline v1::Proposer ProposerOf(ProposerKind kind) {
  return std::ranges::find(kOwnDrafters, kind, &OwnDrafter::kind)->proposer;
}
// nullopt for a number that is not a proposer's.
inline std::optional<ProposerKind> ProposerKindOf(v1::Proposer proposer) {
  const OwnDrafter* own = std::ranges::find(kOwnDrafters, proposer, &OwnDrafter::proposer);
  return own == std::end(kOwnDrafters) ? std::nullopt : std::optional(own->kind);
}

// The target's description of `proposer`; null if the target cannot propose so.
inline const v1::ProposerInfo* FindProposer(const v1::ServerInfo& target, v1::Proposer proposer) {
  if (proposer == v1::PROPOSER_UNSPECIFIED) return nullptr;
  const auto found = std::ranges::find(target.proposers(), proposer, &v1::ProposerInfo::proposer);
  return found == target.proposers().end() ? nullptr : &*found;
}

}  // namespace outrider
