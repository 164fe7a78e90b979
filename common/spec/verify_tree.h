// The part of Verify that judges trees.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "common/spec/proposal.h"
#include "common/spec/verdict.h"
#include "common/spec/verify.h"

namespace outrider {

// Verify (verify.h) for a proposal that is not a chain.
absl::StatusOr<Verdict> VerifyTree(const VerifyOptions& options, std::span<const ProposalNode> tree,
                                   RowSource rows, uint64_t round_start, Noise& noise);

}  // namespace outrider
