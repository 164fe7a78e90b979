// The data that host and device exchange when the device decides: the shaping of rows, proposals and
// verdicts. Plain data of fixed size, the same on both sides.
#pragma once

#include <cstdint>

#include "common/spec/judge_chain.h"
#include "common/spec/random.h"
#include "common/spec/shape_in_order.h"
#include "common/spec/types.h"

namespace outrider::cuda {

using team::kMaxVocab;
using team::RowControls;
using team::ShapedRow;

inline constexpr int kMaxTopN = 256;  // entries of a sparse distribution

struct ShapeParams {
  RowControls controls;
  int32_t entropy = 0;  // whether ShapedRow::entropy is wanted (the target's rows)
  int32_t active = 0;   // 0: the row and its outputs are left alone
};

enum class QForm : int32_t { kAbsent, kPointMass, kSparse };

struct ProposeInput {
  RandomKey key;
  uint64_t position;     // of the token that step 0 drafts
  uint64_t round_start;  // committed tokens when the round began
  int32_t steps;         // this row drafts in steps 0 to `steps` - 1; 0: it is left alone
  int32_t coupled;       // 1: the coupled rule's race and no q
  int32_t top_n;         // entries of a sparse q, 1..kMaxTopN
};

// A drafted token and the form of its q. The `count` ids and weights of a sparse q are in separate arrays.
struct ProposeOutput {
  double total;  // of the weights of a sparse q, else 1
  int32_t token;
  QForm form;
  int32_t count;   // entries of a sparse q, else 0
  int32_t finite;  // 0: the row was not finite, and the token is 0
};

struct VerifyInput {
  RandomKey key;
  uint64_t round_start;   // position of the first drafted token
  int32_t first_row;      // row first_row + i judges drafted token i; one more row follows
  int32_t first_drafted;  // index of drafted token 0
  int32_t drafted;        // 0..kMaxDraftTokens
  int32_t coupled;        // 0: the token rule at lenience 1
  int32_t active;         // 0: the sequence is left alone
};

// A drafted token and its q, which the token rule needs. A point mass is on the token itself.
struct DraftedToken {
  double total;  // of the weights of a sparse q
  int32_t token;
  QForm form;
  int32_t first_q;  // entries first_q .. first_q + count - 1 of q_ids, ascending, and of q_weights
  int32_t count;    // 0..kMaxTopN
};

struct VerifyOutput {
  ChainVerdict verdict;
  int32_t finite;  // 0: a row that was reached was not finite, and the rest is meaningless
  double log_probabilities[kMaxDraftTokens + 1];  // `verdict.accepted` + 1 of them
};

}  // namespace outrider::cuda
