// Which drafters are the target itself.
#pragma once

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/names.h"
#include "outrider/v1/inference.pb.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// How the target proposes with a drafter of that kind, which bears the same name; UNSPECIFIED: it does not.
inline v1::Proposer ProposerOf(v1::DrafterKind kind) {
  v1::Proposer proposer = v1::PROPOSER_UNSPECIFIED;
  v1::Proposer_Parse(absl::StrCat("PROPOSER_", absl::AsciiStrToUpper(NameOf(kind))), &proposer);
  return proposer;
}

// What a target says of it; null if it cannot propose so.
inline const v1::ProposerInfo* FindProposer(const v1::ServerInfo& target, v1::Proposer proposer) {
  if (proposer == v1::PROPOSER_UNSPECIFIED) return nullptr;
  const auto found = std::ranges::find(target.proposers(), proposer, &v1::ProposerInfo::proposer);
  return found == target.proposers().end() ? nullptr : &*found;
}

}  // namespace outrider
