#include "common/engine/cuda/step_plan.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <variant>

namespace outrider::cuda {
namespace {

// The place of the token in a slot, if its position is the number of the slot.
RowPlace PlaceOf(int slot, absl::Span<const BlockId> blocks, int block_size) {
  return {slot, blocks[static_cast<size_t>(slot / block_size)], slot % block_size};
}

int TokensOf(const DeviceTask& task) {
  const auto* propose = std::get_if<ProposeTask>(&task.work);
  return propose == nullptr ? 0 : propose->draft_tokens;
}

// Adds the rows of a sequence: those before its tree, then the nodes.
void AddRows(const SequenceRows& sequence, int block_size, PassPlan& pass) {
  const int count = static_cast<int>(sequence.tokens.size()), end = sequence.position + count;
  const int tree = sequence.parents.empty() ? end : sequence.tree_begin;
  for (int slot = sequence.position; slot < end; ++slot) {
    pass.places.push_back(PlaceOf(slot, sequence.blocks, block_size));
    if (slot >= tree) pass.places.back().position = tree + PathLength(sequence.parents, slot - tree) - 1;
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

// The pass that drafts token `index` of every task; `index` is at least 1.
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
  // Draft passes overwrite the first pass's logits. They write rows for as many tasks as their graph holds,
  // rounded up to what a product writes.
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

namespace {

// All rows of a graph fit if their sequences have at most this length, or paths in trees at most this depth.
constexpr int kShortLength = 1024;
constexpr int kTreeDepth = 64;

// Rounds up to one of 1, 2, 3, 4, 6, 8, 12, 16, ...
int RoundUpToStep(int count) {
  const int step = std::max(static_cast<int>(std::bit_floor(static_cast<unsigned>(count))) / 2, 1);
  return (count + step - 1) / step * step;
}

// A launch that holds `need`. Sizes that do not change the launched thread blocks are as large as the other
// sizes or the memory allow, so that they do not lead to further graphs.
AttentionSize LaunchFor(const AttentionShape& shape, const AttentionSize& need, int rows,
                        const AttentionSize& capacity) {
  const int sequences = TaskCapacity(need.sequences);
  AttentionSize launch = {.sequences = sequences,
                          .rows = rows,
                          .items = std::min(RoundUpToStep(std::max(need.items, sequences)), capacity.items),
                          .tail_items = std::min(RoundUpToStep(need.tail_items), capacity.tail_items),
                          .blocks = 0,
                          .partials = need.partials > 0 ? capacity.partials : 0};
  launch.blocks = std::min(LargestBlocks(shape, launch), capacity.blocks);
  return launch;
}

}  // namespace

AttentionShape AttentionShapeOf(const DecoderConfig& spec, int block_size) {
  return {.query_heads = spec.heads,
          .kv_heads = spec.kv_heads,
          .head_dim = spec.head_dim,
          .block_size = block_size,
          .block_stride = int64_t{2} * spec.layers * spec.kv_heads * block_size * spec.head_dim,
          .slides = std::find(spec.slides.begin(), spec.slides.end(), true) != spec.slides.end()};
}

AttentionSize AttentionCapacity(const AttentionShape& shape, int max_rows, int max_positions) {
  const int length = std::max(kSplit, static_cast<int>(std::bit_ceil(static_cast<unsigned>(max_positions))));
  const AttentionSize longest = LargestSize(shape, kLongRows, kLongRows, length);
  const AttentionSize most =
      LargestSize(shape, kMaxCapturedRows, kMaxCapturedRows, std::min(length, kShortLength));
  const AttentionSize tails = LargestTails(shape, kMaxCapturedRows, kTreeDepth);
  return {.sequences = max_rows,
          .rows = max_rows,
          .items = std::max(longest.items, most.items),
          .tail_items = tails.tail_items,
          .blocks = std::max(longest.blocks, most.blocks) + tails.blocks,
          .partials = length > kSplit ? std::max({longest.partials, most.partials, max_rows}) : 0};
}

int MostBlocks(const AttentionShape& shape) {
  const int64_t heads = shape.block_stride / shape.head_dim;
  return static_cast<int>(std::numeric_limits<int32_t>::max() / heads) - 1;
}

std::optional<GraphShape> GraphOf(const StepPlan& plan, const StepShape& step,
                                  const AttentionShape& attention, const AttentionSize& capacity) {
  if (step.rows > kMaxCapturedRows || step.tasks > kMaxCapturedRows) return std::nullopt;
  const AttentionSize first = SizeOf(attention, plan.first.sequences);
  AttentionSize draft;
  for (const PassPlan& pass : plan.draft_passes) {
    const AttentionSize size = SizeOf(attention, pass.sequences);
    draft = {.sequences = size.sequences,
             .rows = size.rows,
             .items = std::max(draft.items, size.items),
             .blocks = std::max(draft.blocks, size.blocks),
             .partials = std::max(draft.partials, size.partials)};
  }
  GraphShape graph{.step = step, .first = LaunchFor(attention, first, step.rows, capacity), .draft = {}};
  if (!capacity.Holds(graph.first) || !graph.first.Holds(first)) return std::nullopt;
  if (plan.draft_passes.empty()) return graph;
  graph.draft = LaunchFor(attention, draft, step.tasks, capacity);
  if (!capacity.Holds(graph.draft) || !graph.draft.Holds(draft)) return std::nullopt;
  return graph;
}

namespace {

using Work = WarmUpStep::Work;

bool Fits(const WarmUpStep& step, const WarmUpLimits& limits) {
  return step.sequences * step.rows <= limits.rows && step.length + step.draft_tokens <= limits.positions;
}

}  // namespace

std::vector<WarmUpStep> DirectSteps(const WarmUpLimits& limits) {
  // More rows than a graph has, and more positions than a split of attention.
  const int prompt = std::min({limits.rows, limits.positions, std::max(kMaxCapturedRows, kSplit) + 1});
  std::vector<WarmUpStep> steps = {{.rows = prompt, .length = prompt},
                                   {.rows = 2, .length = 2, .work = Work::kVerify},
                                   {.work = Work::kPropose, .draft_tokens = 2}};
  std::erase_if(steps, [&](const WarmUpStep& step) { return !Fits(step, limits); });
  return steps;
}

std::vector<WarmUpStep> CommonSteps(const WarmUpLimits& limits, ModelRole role) {
  constexpr int kMostDrafted = 8;
  std::vector<WarmUpStep> steps;
  for (const bool proposes : {false, true}) {
    if (role != ModelRole::kAny && (role == ModelRole::kDraft) != proposes) continue;
    for (const int length : {kSplit / 2, 2 * kSplit, 4 * kSplit}) {
      for (const int sequences : {1, 8}) {
        for (int drafted = proposes ? 1 : 0; drafted <= kMostDrafted; drafted += proposes ? 1 : 2) {
          const WarmUpStep step{.sequences = sequences,
                                .rows = proposes ? 1 : drafted + 1,
                                .length = length,
                                .work = proposes ? Work::kPropose : Work::kVerify,
                                .draft_tokens = proposes ? drafted : 0};
          if (Fits(step, limits)) steps.push_back(step);
        }
      }
    }
  }
  return steps;
}

MadeUpBatch::MadeUpBatch(const WarmUpStep& step, int block_size) {
  params_.draft_top_n = 1;                                        // fewer than any vocabulary has
  for (int i = 0; i < step.rows; ++i) tokens_.push_back(i % 16);  // ids that every vocabulary has
  blocks_.assign(static_cast<size_t>((step.length + step.draft_tokens + block_size - 1) / block_size), 0);
  if (step.work == Work::kVerify) {
    for (int i = 1; i < step.rows; ++i) {
      const TokenId token = tokens_[static_cast<size_t>(i)];
      AppendToChain(token, {.form = Distribution::Form::kPointMass, .ids = {token}, .total = 1}, draft_);
    }
  }
  const int start = step.length - static_cast<int>(draft_.size());
  tasks_.resize(step.work == Work::kLogits ? 0 : static_cast<size_t>(step.sequences));
  for (DeviceTask& task : tasks_) {
    task.params = &params_;
    task.round_start = static_cast<uint64_t>(start);
    if (step.work == Work::kVerify) task.work = VerifyTask{.draft = draft_};
    if (step.work == Work::kPropose) task.work = ProposeTask{.draft_tokens = step.draft_tokens};
  }
  for (int s = 0; s < step.sequences; ++s) {
    rows_.push_back({.tokens = tokens_,
                     .position = step.length - step.rows,
                     .blocks = blocks_,
                     .logit_rows = static_cast<int>(draft_.size()) + 1,
                     .task = tasks_.empty() ? nullptr : &tasks_[static_cast<size_t>(s)]});
  }
}

}  // namespace outrider::cuda
