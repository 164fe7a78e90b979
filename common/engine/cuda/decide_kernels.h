// The decisions of draft and target as kernels: shaping rows, proposing tokens, judging drafts.
//
// Each function launches kernels on a stream and returns. All arguments are device memory and must not change
// until the kernels have ended. Nothing is allocated or waited for, and the launch depends on the arguments
// alone, so that every launch can be captured in a graph. Rows and sequences that a round does not need are
// marked inactive in device memory. Rows are [rows, vocab] without gaps, vocab in [1, kMaxVocab]. Errors of a
// launch are returned.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/engine/cuda/decide_types.h"

namespace outrider::cuda {

// Turns logits into weights, in place (see ShapeRow).
cudaError_t LaunchShape(float* logits, int vocab, int rows, const ShapeParams* params /*[rows]*/,
                        ShapedRow* shaped /*[rows]*/, cudaStream_t stream);

// Drafts the token of step `step` from each row (see ProposeRow). Also writes the token to next_tokens, which
// the next step embeds. The entries of row r's sparse q begin at r * kMaxTopN.
cudaError_t LaunchPropose(const float* weights, int vocab, int rows, const ShapedRow* shaped /*[rows]*/,
                          const ProposeInput* inputs /*[rows]*/, int step, ProposeOutput* outputs /*[rows]*/,
                          int32_t* q_ids /*[rows, kMaxTopN]*/, float* q_weights /*[rows, kMaxTopN]*/,
                          int32_t* next_tokens /*[rows]*/, const int32_t* head_tokens /*[vocab], or null*/,
                          cudaStream_t stream);

// Judges the draft of each sequence (see VerifySequence). `races` is scratch memory for all rows.
// `max_drafted` is at least the number of drafted tokens of any active sequence.
cudaError_t LaunchVerify(const float* weights, int vocab, int sequences, int max_drafted,
                         const ShapedRow* shaped /*[rows]*/, const VerifyInput* inputs /*[sequences]*/,
                         const DraftedToken* drafted, const int32_t* q_ids, const float* q_weights,
                         int32_t* races /*[rows]*/, VerifyOutput* outputs /*[sequences]*/,
                         cudaStream_t stream);

}  // namespace outrider::cuda
