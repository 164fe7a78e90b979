#include "common/engine/cuda/step_plan.h"

#include <algorithm>
#include <bit>
#include <variant>

namespace outrider::cuda {
namespace {

// The place of the token in a slot, whose position is the slot's.
RowPlace PlaceOf(int slot, absl::Span<const BlockId> blocks, int block_size) {
  return {slot, blocks[static_cast<size_t>(slot / block_size)], slot % block_size};
}

int TokensOf(const DeviceTask& task) {
  const auto* propose = std::get_if<ProposeTask>(&task.work);
  return propose == nullptr ? 0 : propose->draft_tokens;
}

// The rows of a sequence: those before its tree, then the nodes.
void AddRows(const SequenceRows& sequence, int block_size, PassPlan& pass) {
  const int count = static_cast<int>(sequence.tokens.size()), end = sequence.position + count;
  const int tree = sequence.parents.empty() ? end : sequence.tree_begin;
  for (int slot = sequence.position; slot < end; ++slot) {
    pass.places.push_back(PlaceOf(slot, sequence.blocks, block_size));
    if (slot >= tree) pass.places.back().position = tree + Depth(sequence.parents, slot - tree) - 1;
  }
  const int nodes = std::min(count, end - tree);
  if (nodes < count)
    pass.sequences.push_back({.rows = count - nodes, .length = end - nodes, .blocks = sequence.blocks});
  if (nodes > 0) {
    pass.sequences.push_back({.rows = nodes,
                              .length = end,
                              .blocks = sequence.blocks,
                              .tree_begin = tree,
                              .parents = sequence.parents});
  }
}

// The pass that drafts token `index`, from 1 on, of every task.
PassPlan PlanDraftPass(absl::Span<const SequenceRows> batch, int index, int block_size,
                       absl::Span<const BlockId> spare) {
  PassPlan pass;
  for (const SequenceRows& sequence : batch) {
    if (sequence.task == nullptr) continue;
    if (index < TokensOf(*sequence.task)) {
      const int position = sequence.position + static_cast<int>(sequence.tokens.size()) + index - 1;
      pass.places.push_back(PlaceOf(position, sequence.blocks, block_size));
      pass.sequences.push_back({.rows = 1, .length = position + 1, .blocks = sequence.blocks});
    } else {
      pass.places.push_back(PlaceOf(0, spare, block_size));
      pass.sequences.push_back({.rows = 1, .length = 1, .blocks = spare});
    }
  }
  return pass;
}

}  // namespace

StepPlan PlanStep(absl::Span<const SequenceRows> batch, int block_size, absl::Span<const BlockId> spare) {
  StepPlan plan;
  std::vector<int32_t> host_rows;
  int draft_tokens = 0;
  for (const SequenceRows& sequence : batch) {
    const int first = static_cast<int>(plan.tokens.size());
    const int count = static_cast<int>(sequence.tokens.size());
    plan.tokens.insert(plan.tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
    AddRows(sequence, block_size, plan.first);
    std::vector<int32_t>& rows = sequence.task != nullptr ? plan.logit_rows : host_rows;
    for (int i = count - sequence.logit_rows; i < count; ++i) rows.push_back(first + i);
    if (sequence.task == nullptr) continue;
    plan.tasks.push_back(sequence.task);
    draft_tokens = std::max(draft_tokens, TokensOf(*sequence.task));
  }
  // Draft passes write the logits of as many tasks as their graph holds, rounded up to what a product writes,
  // over those of the first pass.
  if (draft_tokens > 1 && !host_rows.empty()) {
    const int written = PaddedRows(TaskCapacity(static_cast<int>(plan.tasks.size())));
    plan.logit_rows.resize(static_cast<size_t>(written), 0);
  }
  plan.logit_rows.insert(plan.logit_rows.end(), host_rows.begin(), host_rows.end());
  plan.host_rows = static_cast<int>(host_rows.size());
  for (int i = 1; i < draft_tokens; ++i) {
    plan.draft_passes.push_back(PlanDraftPass(batch, i, block_size, spare));
  }
  return plan;
}

int RowCapacity(int rows) {
  if (rows > kMaxCapturedRows) return PaddedRows(rows);
  constexpr int kMany = 64;
  return rows <= 2 * kRowTile ? PaddedRows(rows) : (rows + kMany - 1) / kMany * kMany;
}

int TaskCapacity(int tasks) {
  if (tasks > kMaxCapturedRows) return tasks;
  return tasks <= kRowTile ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(tasks)))
                           : RowCapacity(tasks);
}

StepShape ShapeOf(const StepPlan& plan) {
  const int tasks = plan.tasks.empty() ? 0 : TaskCapacity(static_cast<int>(plan.tasks.size()));
  const bool proposes = tasks > 0 && std::holds_alternative<ProposeTask>(plan.tasks[0]->work);
  // Each task, idle ones included, drafts from a row of its own.
  const int logit_rows = std::max(static_cast<int>(plan.logit_rows.size()), proposes ? tasks : 0);
  return {.rows = RowCapacity(static_cast<int>(plan.tokens.size())),
          .logit_rows = RowCapacity(logit_rows),
          .tasks = tasks,
          .proposes = proposes,
          .draft_passes = static_cast<int>(plan.draft_passes.size())};
}

}  // namespace outrider::cuda
