// The check of what a device decides itself.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/engine/model.h"
#include "common/engine/self_test_model.h"

namespace outrider {

// Gives the model proposals and verdicts as tasks, under several sampling controls and both rules that
// devices know, all in one step where Model::row_invariant is true, each step twice: the second one is a
// captured one on a GPU. The host decides the same from the model's own logits. Returns what was found, in
// words, also where the model has no such tasks; FAILED_PRECONDITION, naming the decision, where one differs;
// else the errors of the model.
absl::StatusOr<std::string> CheckDecisions(Model& model, const SelfTestModel& small);

}  // namespace outrider
