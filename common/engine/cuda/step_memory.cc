#include "common/engine/cuda/step_memory.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/cuda/decide_convert.h"

namespace outrider::cuda {
namespace {

constexpr size_t kAlignment = 256;

// Allocates arrays one after another.
class Layout {
 public:
  explicit Layout(char* memory) : memory_(memory) {}

  template <class T>
  void Add(T*& array, size_t count) {
    array = count == 0 || memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
  }
  size_t bytes() const { return bytes_; }

 private:
  char* const memory_;
  size_t bytes_ = 0;
};

size_t Size(int count) { return static_cast<size_t>(count); }

}  // namespace

size_t LayOut(const StepShape& shape, char* memory, StepInputs& inputs) {
  const size_t tasks = Size(shape.tasks);
  const size_t judged = shape.proposes || tasks == 0 ? 0 : Size(shape.logit_rows);
  Layout layout(memory);
  layout.Add(inputs.tokens, Size(shape.rows));
  layout.Add(inputs.places, Size(shape.rows));
  layout.Add(inputs.logit_rows, Size(shape.logit_rows));
  layout.Add(inputs.shape_params, tasks == 0 ? 0 : Size(shape.logit_rows));
  layout.Add(inputs.draft_places, Size(shape.draft_passes) * tasks);
  layout.Add(inputs.propose, shape.proposes ? tasks : 0);
  layout.Add(inputs.verify, shape.proposes ? 0 : tasks);
  layout.Add(inputs.drafted, judged);
  layout.Add(inputs.q_ids, judged * kMaxTopN);
  layout.Add(inputs.q_weights, judged * kMaxTopN);
  return layout.bytes();
}

size_t LayOut(const StepShape& shape, char* memory, StepOutputs& outputs) {
  const size_t tasks = Size(shape.tasks);
  const size_t proposals = shape.proposes ? Size(shape.draft_passes + 1) * tasks : 0;
  Layout layout(memory);
  layout.Add(outputs.proposals, proposals);
  layout.Add(outputs.q_ids, proposals * kMaxTopN);
  layout.Add(outputs.q_weights, proposals * kMaxTopN);
  layout.Add(outputs.verdicts, shape.proposes ? 0 : tasks);
  return layout.bytes();
}

void WriteInputs(const StepPlan& plan, const StepShape& shape, int32_t spare_block,
                 const StepInputs& inputs) {
  const RowPlace idle{0, spare_block, 0};
  const auto fill = [](auto* to, const auto& from, size_t count, const auto& rest) {
    std::fill(std::copy(from.begin(), from.end(), to), to + count, rest);
  };
  fill(inputs.tokens, plan.tokens, Size(shape.rows), 0);
  fill(inputs.places, plan.first.places, Size(shape.rows), idle);
  fill(inputs.logit_rows, plan.logit_rows, Size(shape.logit_rows), 0);
  const size_t tasks = Size(shape.tasks);
  for (size_t i = 0; i < plan.draft_passes.size(); ++i) {
    fill(inputs.draft_places + i * tasks, plan.draft_passes[i].places, tasks, idle);
  }
  if (tasks == 0) return;

  std::fill_n(inputs.shape_params, Size(shape.logit_rows), ShapeParams{});
  if (shape.proposes) {
    std::fill_n(inputs.propose, tasks, ProposeInput{});
  } else {
    std::fill_n(inputs.verify, tasks, VerifyInput{});
  }
  int row = 0, drafted = 0, q = 0;
  for (size_t i = 0; i < plan.tasks.size(); ++i) {
    const DeviceTask& task = *plan.tasks[i];
    const SequenceParams& params = *task.params;
    if (const auto* propose = std::get_if<ProposeTask>(&task.work)) {
      inputs.shape_params[row++] = ToShapeParams(params.sampling, /*entropy=*/false);
      // The first drafted token follows the committed ones.
      inputs.propose[i] = ToProposeInput(params.key, params.rule, task.round_start, task.round_start,
                                         propose->draft_tokens, params.draft_top_n);
      continue;
    }
    const auto& draft = std::get<VerifyTask>(task.work).draft;
    const int count = static_cast<int>(draft.size());
    inputs.verify[i] = ToVerifyInput(params.key, params.rule, task.round_start, row, drafted, count);
    for (int k = 0; k <= count; ++k) {
      inputs.shape_params[row++] = ToShapeParams(params.sampling, /*entropy=*/true);
    }
    q = PackDraft({draft.data(), draft.size()}, q, inputs.drafted + drafted, inputs.q_ids, inputs.q_weights);
    drafted += count;
  }
}

void ReadOutputs(const StepPlan& plan, const StepShape& shape, const StepOutputs& outputs) {
  for (size_t i = 0; i < plan.tasks.size(); ++i) {
    DeviceTask& task = *plan.tasks[i];
    if (auto* verify = std::get_if<VerifyTask>(&task.work)) {
      absl::StatusOr<Verdict> verdict =
          ToVerdict(outputs.verdicts[i], static_cast<int>(verify->draft.size()));
      task.status = verdict.status();
      if (verdict.ok()) verify->verdict = *std::move(verdict);
      continue;
    }
    auto& propose = std::get<ProposeTask>(task.work);
    for (int step = 0; step < propose.draft_tokens && task.status.ok(); ++step) {
      const size_t at = Size(step) * Size(shape.tasks) + i;
      task.status = AppendTo(propose.proposal, outputs.proposals[at], outputs.q_ids + at * kMaxTopN,
                             outputs.q_weights + at * kMaxTopN);
    }
  }
}

}  // namespace outrider::cuda
