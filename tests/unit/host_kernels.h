// The GPU's kernels that decide, from the same source, on teams of host threads: the functions of
// common/engine/cuda/decide_kernels.h without a stream.
#pragma once

#include "common/engine/cuda/decide_rows.h"
#include "common/spec/team/row_draw.h"
#include "common/spec/team/row_shape.h"
#include "decide_testing.h"

namespace outrider::testing {

inline void HostShape(int team, float* logits, int vocab, int rows, const cuda::ShapeParams* params,
                      cuda::ShapedRow* shaped) {
  for (int r = 0; r < rows; ++r) {
    if (params[r].active == 0) continue;
    cuda::OnTeam(team, [&](auto& threads) {
      team::ShapeRow(threads, logits + int64_t{r} * vocab, vocab, params[r].controls, params[r].entropy != 0,
                     &shaped[r]);
    });
  }
}

inline void HostPropose(int team, const float* weights, int vocab, int rows, const cuda::ShapedRow* shaped,
                        const cuda::ProposeInput* inputs, int step, cuda::ProposeOutput* outputs,
                        int32_t* q_ids, float* q_weights, int32_t* next_tokens,
                        const int32_t* head_tokens = nullptr) {
  for (int r = 0; r < rows; ++r) {
    if (step >= inputs[r].steps) continue;
    cuda::OnTeam(team, [&](auto& threads) {
      ProposeRow(threads, weights + int64_t{r} * vocab, vocab, shaped[r], inputs[r], step, &outputs[r],
                 q_ids + r * cuda::kMaxTopN, q_weights + r * cuda::kMaxTopN, head_tokens);
    });
    next_tokens[r] = outputs[r].token;
  }
}

inline void HostVerify(int team, const float* weights, int vocab, int sequences,
                       const cuda::ShapedRow* shaped, const cuda::VerifyInput* inputs,
                       const cuda::DraftedToken* drafted, const int32_t* q_ids, const float* q_weights,
                       int32_t* races, cuda::VerifyOutput* outputs) {
  for (int s = 0; s < sequences; ++s) {
    const cuda::VerifyInput& input = inputs[s];
    if (input.active == 0) continue;
    cuda::OnTeam(team, [&](auto& threads) {
      for (int i = 0; input.coupled != 0 && i <= input.drafted; ++i) {
        const int row = input.first_row + i;
        if (shaped[row].finite == 0 || shaped[row].point_mass >= 0) continue;
        const int winner = team::RaceRow(threads, weights + int64_t{row} * vocab, vocab, input.key,
                                         input.round_start + static_cast<uint64_t>(i));
        if (threads.rank() == 0) races[row] = winner;
        threads.Sync();
      }
      VerifySequence(threads, weights, vocab, shaped, races, input, drafted, q_ids, q_weights, &outputs[s]);
    });
  }
}

}  // namespace outrider::testing
