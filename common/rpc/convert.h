// Converts proposals and verdicts between messages and objects; nothing else knows both forms.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/grammar/grammar.h"
#include "common/spec/controls.h"
#include "common/spec/distribution.h"
#include "common/spec/proposal.h"
#include "common/spec/status.h"
#include "common/spec/tree_shape.h"
#include "common/spec/verdict.h"
#include "common/spec/verify.h"
#include "outrider/v1/sequence.pb.h"
#include "outrider/v1/target.pb.h"

namespace outrider {

using DraftNodes = google::protobuf::RepeatedPtrField<v1::DraftNode>;

// Parses any forest and prepares each node's q, which may be absent under the coupled rule. INVALID_ARGUMENT,
// naming the node, reason DRAFT_PARENT_OUT_OF_RANGE, DRAFT_TOKEN_OUT_OF_RANGE or DRAFT_DISTRIBUTION_INVALID.
absl::StatusOr<Proposal> ParseProposal(const DraftNodes& nodes, Rule rule, int vocab_size);

// The same for the coordinator, which only passes q on to the target: checks that q is there and has as many
// entries as its form needs, and prepares nothing.
absl::StatusOr<Proposal> ParseUnpreparedProposal(const DraftNodes& nodes, Rule rule, int vocab_size);

// Appends the nodes of `proposal` to `nodes`.
void SerializeProposal(std::span<const ProposalNode> proposal, DraftNodes* nodes);

// Parses the shape that a draft is asked for. INVALID_ARGUMENT, reason TREE_OUT_OF_RANGE, if it is invalid.
absl::StatusOr<TreeShape> ParseShape(const v1::TreeShape& shape);
v1::TreeShape SerializeShape(const TreeShape& shape);

// Parses a verdict on `proposal`, without its log-probabilities. INTERNAL, reason VERDICT_INVALID, for a path
// that does not follow `proposal` from its root, a token outside the vocabulary, a kind that does not match
// the path, or a canary out of range.
absl::StatusOr<Verdict> ParseVerdict(const v1::Verdict& message, std::span<const ProposalNode> proposal,
                                     int vocab_size);

// Parses the candidates after each of `rows` tokens: `size` of them, or the whole vocabulary if that is less.
// INTERNAL, reason VERDICT_INVALID, if the number of rows or candidates differs, a token is outside the
// vocabulary or repeated within a row, or log-probabilities exceed 0 or increase within a row.
absl::StatusOr<std::vector<CandidateRow>> ParseCandidates(const v1::VerifyResult& message, size_t rows,
                                                          int size, int vocab_size);
v1::TokenLogprob SerializeLogprob(const TokenLogProbability& token);
google::protobuf::RepeatedPtrField<v1::CandidateRow> SerializeCandidates(std::span<const CandidateRow> rows);

// Checks the target's log-probabilities of `tokens`, with up to `most` candidates at each position. INTERNAL,
// reason VERDICT_INVALID, if tokens or counts differ, or if ParseCandidates would refuse candidates.
absl::Status CheckLogprobs(const google::protobuf::RepeatedPtrField<v1::PositionLogprobs>& positions,
                           std::span<const TokenId> tokens, int most, int vocab_size);

// INTERNAL, reason VERDICT_INVALID: the target's answer cannot be true, for the reason that `parts` give.
template <class... Parts>
absl::Status InvalidVerdict(const Parts&... parts) {
  return MakeError(absl::StatusCode::kInternal, "VERDICT_INVALID", absl::StrCat("verdict: ", parts...));
}

v1::Verdict SerializeVerdict(const Verdict& verdict);

v1::TokenKind ToProto(Verdict::Kind kind);

// INVALID_ARGUMENT, reason RULE_UNKNOWN, for a rule that this version does not have.
absl::StatusOr<Rule> ParseRule(v1::Rule rule);

// INVALID_ARGUMENT, naming `field`, unless all ids are in [0, vocab_size).
absl::Status CheckTokenIds(const google::protobuf::RepeatedField<uint32_t>& ids, uint32_t vocab_size,
                           absl::string_view field);

std::vector<TokenId> ToTokens(const google::protobuf::RepeatedField<uint32_t>& ids);

// The sampling controls except the grammar; `end_ids` are the ids that min_tokens suppresses.
SamplingParams ParseSampling(const v1::SamplingParams& sampling,
                             const google::protobuf::RepeatedField<uint32_t>& end_ids);

// INVALID_ARGUMENT, naming "grammar", if it has no form, no choices or an empty one, or more than
// kMaxGrammarText bytes. The grammar's text is not parsed.
absl::StatusOr<GrammarText> ParseGrammar(const v1::Grammar& grammar);

}  // namespace outrider
