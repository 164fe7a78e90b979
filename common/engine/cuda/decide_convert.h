// Decides which tasks a GPU carries out, and converts between the types of common/spec and the plain data of
// the device. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "common/engine/batch.h"
#include "common/engine/cuda/decide_types.h"
#include "common/engine/decoder/decoder_config.h"
#include "common/spec/controls.h"
#include "common/spec/random.h"
#include "common/spec/verify.h"

namespace outrider::cuda {

// Whether the kernels support this task for this model. They support temperature, top_k, top_p and min_p.
// They verify chains of at most kMaxDraftTokens tokens under the coupled rule and under the token rule at
// lenience 1, without log-probabilities; each q is a point mass, absent (coupled rule) or sparse with at most
// kMaxTopN entries. They draft at most kMaxDraftTokens tokens, each q with at most kMaxTopN entries. With a
// cut head they only draft, and not under the coupled rule. The functions below are for such tasks.
bool CanRun(const DeviceTask& task, const DecoderConfig& spec);

// The parameters of an active row. `entropy` says whether it is a row of the target.
ShapeParams ToShapeParams(const SamplingParams& params, bool entropy);

// The input of a row that drafts `steps` tokens, from `position` on.
ProposeInput ToProposeInput(const RandomKey& key, Rule rule, uint64_t position, uint64_t round_start,
                            int steps, int top_n);

// Adds the drafted token and its prepared q (see Prepare) to a chain. q_ids and q_weights are those of the
// token's row. INTERNAL "logits_not_finite" if the row was not finite.
absl::Status AppendTo(Proposal& proposal, const ProposeOutput& output, const int32_t* q_ids,
                      const float* q_weights);

// The input of an active sequence.
VerifyInput ToVerifyInput(const RandomKey& key, Rule rule, uint64_t round_start, int first_row,
                          int first_drafted, int drafted);

// Writes a chain to drafted[0 .. draft.size() - 1] and the entries of its sparse distributions from index
// first_q of q_ids and q_weights on. Returns the index after the last entry.
int PackDraft(std::span<const ProposalNode> draft, int first_q, DraftedToken* drafted, int32_t* q_ids,
              float* q_weights);

// The verdict over `drafted` tokens. INTERNAL "logits_not_finite" if a row that was reached was not finite.
absl::StatusOr<Verdict> ToVerdict(const VerifyOutput& output, int drafted);

}  // namespace outrider::cuda
