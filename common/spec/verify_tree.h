// Verification when several tokens are proposed for one position.
//
// Pure functions, any thread, as in common/spec/verify.h.
#pragma once

#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/spec/proposal.h"
#include "common/spec/verdict.h"
#include "common/spec/verify.h"

namespace outrider {

// How the children of a node are tried. Each is accepted if u q(x) < r(x), where r is p at first; a rejected
// child leaves r = norm(max(r - q, 0)), and r gives the token when all are rejected.
enum class ChildOrder {
  // In the order of their indices: iterative multi-proposal sampling. Exact when each q is the law of its
  // token given the siblings before it: equal q for independent draws, and for draws without replacement q
  // without the tokens already drawn.
  kGiven,
  // In a random order, which is SpecInfer's multi-step speculative sampling (Miao et al., arXiv 2305.09781,
  // Algorithm 2). Exact for independent draws whose number was fixed before the first, also from different q.
  kRandom,
};

// The target's row after a node (-1: after the committed tokens), asked for once for each node that stands.
// Rows stay valid until VerifyTree returns.
using TreeRowSource = absl::FunctionRef<absl::StatusOr<WeightRow>(int node)>;

// Walks from the root to where no child stands. At temperature 0 (one-hot rows) a child stands iff it is the
// argmax, so the walk is the greedy tree. The verdict has no log-probabilities and no canaries.
// InvalidArgument for a parent that is not an earlier node, or a missing q.
absl::StatusOr<Verdict> VerifyTree(ChildOrder order, std::span<const ProposalNode> tree, TreeRowSource rows,
                                   uint64_t round_start, Noise& noise);

}  // namespace outrider
