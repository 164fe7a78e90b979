// The names of the protocol's enumeration values in flags, metrics, answers and errors: "bonus" stands for
// TOKEN_KIND_BONUS. Also lists all drafters, and those that are the target itself. Nothing else maps between
// v1::DrafterKind, v1::Proposer and the engine's ProposerKind.
#pragma once

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "common/engine/sequence_params.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/generated_enum_reflection.h"
#include "outrider/v1/inference.pb.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// The prefix of an enumeration's value names, such as TOKEN_KIND_. The first value is <PREFIX>UNSPECIFIED.
inline std::string PrefixOfNames(const google::protobuf::EnumDescriptor& type) {
  const std::string first(type.value(0)->name());
  return first.substr(0, first.size() - std::strlen("UNSPECIFIED"));
}

// The value's name in lower case, without the prefix; its number if it has no name.
template <class Enum>
requires(google::protobuf::is_proto_enum<Enum>::value) std::string NameOf(Enum value) {
  const google::protobuf::EnumDescriptor& type = *google::protobuf::GetEnumDescriptor<Enum>();
  const auto* const known = type.FindValueByNumber(static_cast<int>(value));
  if (known == nullptr) return std::to_string(static_cast<int>(value));
  return absl::AsciiStrToLower(std::string(known->name()).substr(PrefixOfNames(type).size()));
}

// The value with that name; UNSPECIFIED if there is none.
template <class Enum>
Enum FromName(const std::string& name) {
  const google::protobuf::EnumDescriptor& type = *google::protobuf::GetEnumDescriptor<Enum>();
  const auto* const known = type.FindValueByName(PrefixOfNames(type) + absl::AsciiStrToUpper(name));
  return static_cast<Enum>(known == nullptr ? 0 : known->number());
}

// The names of all drafters.
inline std::vector<std::string> DrafterNames() {
  std::vector<std::string> names;
  for (int each = v1::DRAFTER_KIND_UNSPECIFIED + 1; each < v1::DrafterKind_ARRAYSIZE; ++each) {
    if (v1::DrafterKind_IsValid(each)) names.push_back(NameOf(static_cast<v1::DrafterKind>(each)));
  }
  return names;
}

// A drafter that is the target itself. It has the same name in all three enumerations.
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

// The target's description of `proposer`; null if the target does not have this proposer.
inline const v1::ProposerInfo* FindProposer(const v1::ServerInfo& target, v1::Proposer proposer) {
  if (proposer == v1::PROPOSER_UNSPECIFIED) return nullptr;
  const auto found = std::ranges::find(target.proposers(), proposer, &v1::ProposerInfo::proposer);
  return found == target.proposers().end() ? nullptr : &*found;
}

}  // namespace outrider
