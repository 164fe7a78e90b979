// The check of a model's claim that a row depends on its own prefix only.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/engine/model.h"
#include "common/engine/self_test_model.h"

namespace outrider {

// Computes one sequence in several ways: in one pass, in chunks, token by token, beside another sequence, and
// going on in a copy of a block; and, where the model takes trees, its end as a path of a tree. All logits,
// keys and values must have the same bits, or agree up to rounding where Model::row_invariant, of the tree
// Model::tree_row_invariant, is false. Returns what was found, in words; FAILED_PRECONDITION, naming the way
// and the position, where something differs; else the errors of the model.
absl::StatusOr<std::string> CheckRows(Model& model, const SelfTestModel& small);

}  // namespace outrider
