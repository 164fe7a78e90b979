// Proposals and verdicts as bytes become objects, and back: the one place that knows both forms.
#pragma once

#include <span>

#include "absl/status/statusor.h"
#include "common/spec/proposal.h"
#include "common/spec/verdict.h"
#include "common/spec/verify.h"
#include "outrider/v1/sequence.pb.h"
#include "outrider/v1/target.pb.h"

namespace outrider {

// A chain, each node's q prepared. Under the coupled rule q may be absent. INVALID_ARGUMENT, reason
// DRAFT_TREE_UNSUPPORTED, DRAFT_TOKEN_OUT_OF_RANGE or DRAFT_DISTRIBUTION_INVALID, naming the node.
absl::StatusOr<Proposal> ParseProposal(const google::protobuf::RepeatedPtrField<v1::DraftNode>& nodes,
                                       Rule rule, int vocab_size);

// Adds the nodes of `proposal` to `nodes`.
void SerializeProposal(std::span<const ProposalNode> proposal,
                       google::protobuf::RepeatedPtrField<v1::DraftNode>* nodes);

// A verdict over `proposal`; its log-probabilities stay in the message. INTERNAL, reason VERDICT_INVALID, for
// a path that does not lead down `proposal` from its root, a token outside the vocabulary, or an unknown
// kind.
absl::StatusOr<Verdict> ParseVerdict(const v1::Verdict& message, std::span<const ProposalNode> proposal,
                                     int vocab_size);

v1::Verdict SerializeVerdict(const Verdict& verdict);

v1::TokenKind ToProto(Verdict::Kind kind);

}  // namespace outrider
