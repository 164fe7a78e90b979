// Which graph serves a step, and what its attention launches.
#include "common/engine/cuda/step_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace outrider::cuda {
namespace {

constexpr AttentionShape kShapeOf3B = {.query_heads = 24, .kv_heads = 8, .head_dim = 128, .block_size = 16};
const std::vector<BlockId> kSpareBlock = {99};

AttentionSize Capacity() { return AttentionCapacity(kShapeOf3B, /*max_rows=*/512, /*max_positions=*/131072); }

// A batch of sequences that have no tasks, or whose tasks draft.
class TaskBatch {
 public:
  explicit TaskBatch(int draft_tokens = 0) : draft_tokens_(draft_tokens) {}

  void Add(int rows, int length) {
    static const std::vector<TokenId>* const kTokens = new std::vector<TokenId>(1000);
    static const std::vector<BlockId>* const kBlocks = new std::vector<BlockId>(8192 + 2);
    if (draft_tokens_ > 0) {
      tasks_.push_back(std::make_unique<DeviceTask>(
          DeviceTask{.params = &params_, .round_start = 0, .work = ProposeTask{draft_tokens_}}));
    }
    rows_.push_back({.tokens = absl::MakeConstSpan(*kTokens).first(static_cast<size_t>(rows)),
                     .position = length - rows,
                     .blocks = *kBlocks,
                     .logit_rows = 1,
                     .task = draft_tokens_ > 0 ? tasks_.back().get() : nullptr});
  }
  StepPlan plan() const { return PlanStep(rows_, kShapeOf3B.block_size, kSpareBlock); }
  std::optional<GraphShape> graph() const {
    const StepPlan step = plan();
    return GraphOf(step, ShapeOf(step), kShapeOf3B, Capacity());
  }

 private:
  const int draft_tokens_;
  SequenceParams params_;
  std::vector<std::unique_ptr<DeviceTask>> tasks_;
  std::vector<SequenceRows> rows_;
};

std::optional<GraphShape> GraphOfSequences(int sequences, int rows, int length, int draft_tokens = 0) {
  TaskBatch batch(draft_tokens);
  for (int i = 0; i < sequences; ++i) batch.Add(rows, length);
  return batch.graph();
}

TEST(GraphOf, IsTheSameForStepsThatDifferALittle) {
  EXPECT_EQ(GraphOfSequences(1, 3, 10), GraphOfSequences(1, 5, 250));
  EXPECT_EQ(GraphOfSequences(3, 1, 1), GraphOfSequences(4, 1, 100));
  EXPECT_NE(GraphOfSequences(1, 1, 10), GraphOfSequences(1, 1, 600));
  // Merging partial results is another launch.
  EXPECT_NE(GraphOfSequences(1, 1, 256), GraphOfSequences(1, 1, 257));
  EXPECT_NE(GraphOfSequences(1, 1, 10, 1), GraphOfSequences(1, 1, 10, 2));
}

// The short sequences are not launched as if they were as long as the longest.
TEST(GraphOf, OneLongSequenceAmongShortOnesLaunchesWhatTheyNeed) {
  TaskBatch batch;
  for (int i = 0; i < 31; ++i) batch.Add(1, 100);
  batch.Add(1, 70000);
  const std::optional<GraphShape> graph = batch.graph();
  ASSERT_TRUE(graph);
  const int needed = 31 + (70000 + kSplit - 1) / kSplit;
  EXPECT_GE(graph->first.items, needed);
  EXPECT_LT(graph->first.items, needed * 3 / 2);
}

// Each step copies its plans.
TEST(GraphOf, PlansOfShortSequencesAreSmall) {
  const std::optional<GraphShape> graph =
      GraphOfSequences(/*sequences=*/1, /*rows=*/1, 200, /*draft_tokens=*/5);
  ASSERT_TRUE(graph);
  EXPECT_LT(PlanLayout(graph->first).bytes + 4 * PlanLayout(graph->draft).bytes, 4096u);
}

TEST(GraphOf, HoldsItsStep) {
  std::mt19937 random(1);
  int graphs = 0;
  std::set<GraphShape> shapes;
  for (int i = 0; i < 400; ++i) {
    TaskBatch batch(static_cast<int>(random() % 3) * 2);
    const int sequences = 1 + static_cast<int>(random() % 60);
    for (int s = 0; s < sequences; ++s) {
      const int rows = 1 + static_cast<int>(random() % 6);
      batch.Add(rows, rows + static_cast<int>(random() % (random() % 4 == 0 ? 20000 : 300)));
    }
    const StepPlan plan = batch.plan();
    const std::optional<GraphShape> graph = batch.graph();
    if (!graph) continue;
    ++graphs;
    shapes.insert(*graph);
    const auto expect_held = [&](const AttentionSize& launch, const PassPlan& pass) {
      EXPECT_TRUE(Capacity().Holds(launch));
      std::vector<char> written(PlanLayout(launch).bytes + 16);
      char* const aligned = written.data() + (16 - reinterpret_cast<uintptr_t>(written.data()) % 16) % 16;
      EXPECT_TRUE(WritePlan(kShapeOf3B, launch, pass.sequences, aligned).ok());
    };
    expect_held(graph->first, plan.first);
    for (const PassPlan& pass : plan.draft_passes) expect_held(graph->draft, pass);
    EXPECT_GE(graph->first.rows, static_cast<int>(plan.tokens.size()));
  }
  EXPECT_GT(graphs, 300);
  EXPECT_LT(shapes.size(), static_cast<size_t>(graphs));
}

TEST(GraphOf, LargeStepsHaveNone) {
  EXPECT_TRUE(GraphOfSequences(256, 1, 1));
  EXPECT_FALSE(GraphOfSequences(257, 1, 1));
  EXPECT_TRUE(GraphOfSequences(1, 256, 256));
  EXPECT_FALSE(GraphOfSequences(1, 257, 257));
  // Few rows, but the partial results of 70 such long sequences do not fit the memory for them.
  EXPECT_TRUE(GraphOfSequences(60, 1, 131072));
  EXPECT_FALSE(GraphOfSequences(70, 1, 131072));
}

std::optional<GraphShape> GraphOfMadeUp(const WarmUpStep& step) {
  const MadeUpBatch batch(step, kShapeOf3B.block_size);
  const StepPlan plan = PlanStep(batch.rows(), kShapeOf3B.block_size, kSpareBlock);
  return GraphOf(plan, ShapeOf(plan), kShapeOf3B, Capacity());
}

// The graphs that a model captures while it is loaded.
std::set<GraphShape> CommonGraphs(ModelRole role) {
  std::set<GraphShape> graphs;
  for (const WarmUpStep& step : CommonSteps({.rows = 512, .positions = 131072}, role)) {
    const std::optional<GraphShape> graph = GraphOfMadeUp(step);
    EXPECT_TRUE(graph);
    if (graph) graphs.insert(*graph);
  }
  return graphs;
}

TEST(CommonSteps, AreThoseOfTheRole) {
  const std::set<GraphShape> all = CommonGraphs(ModelRole::kAny), of_draft = CommonGraphs(ModelRole::kDraft),
                             of_target = CommonGraphs(ModelRole::kTarget);
  EXPECT_LT(all.size(), 80u);
  EXPECT_EQ(of_draft.size() + of_target.size(), all.size());
  for (const GraphShape& graph : of_draft) EXPECT_TRUE(graph.step.proposes && all.contains(graph));
  for (const GraphShape& graph : of_target) {
    EXPECT_FALSE(graph.step.proposes);
    EXPECT_GT(graph.step.tasks, 0);
    EXPECT_TRUE(all.contains(graph));
  }
}

TEST(CommonSteps, OfATargetHoldTheGraphsOfAnyK) {
  const std::set<GraphShape> graphs = CommonGraphs(ModelRole::kTarget);
  for (const int sequences : {1, 8}) {
    for (const int length : {20, 200, 500}) {
      for (int drafted = 0; drafted <= 8; ++drafted) {
        const auto graph = GraphOfMadeUp({.sequences = sequences,
                                          .rows = 1 + drafted,
                                          .length = length,
                                          .work = WarmUpStep::Work::kVerify});
        ASSERT_TRUE(graph);
        EXPECT_TRUE(graphs.contains(*graph)) << sequences << " of " << length << " verify " << drafted;
      }
    }
  }
}

TEST(CommonSteps, OfADraftHoldTheGraphsOfOneStreamAndOfEight) {
  const std::set<GraphShape> graphs = CommonGraphs(ModelRole::kDraft);
  for (const int sequences : {1, 5, 8}) {
    for (const int length : {20, 200}) {
      for (int draft_tokens = 1; draft_tokens <= 8; ++draft_tokens) {
        const auto graph = GraphOfSequences(sequences, 1 + draft_tokens % 2, length, draft_tokens);
        EXPECT_TRUE(graphs.contains(*graph)) << sequences << " of " << length << " draft " << draft_tokens;
      }
    }
  }
}

TEST(CommonSteps, KeepWithinTheLimits) {
  for (const WarmUpLimits& limits :
       {WarmUpLimits{32, 64}, WarmUpLimits{32, 100000}, WarmUpLimits{512, 300}}) {
    for (const auto& steps : {CommonSteps(limits, ModelRole::kAny), DirectSteps(limits)}) {
      for (const WarmUpStep& step : steps) {
        const MadeUpBatch batch(step, 4);
        int rows = 0;
        for (const SequenceRows& sequence : batch.rows()) {
          rows += static_cast<int>(sequence.tokens.size());
          const int end = sequence.position + static_cast<int>(sequence.tokens.size());
          EXPECT_LE(end + step.draft_tokens, limits.positions);
          EXPECT_GE(static_cast<int>(sequence.blocks.size()) * 4, end + step.draft_tokens);
        }
        EXPECT_LE(rows, limits.rows);
      }
    }
  }
  EXPECT_TRUE(CommonSteps({.rows = 32, .positions = 64}, ModelRole::kAny).empty());
  EXPECT_EQ(DirectSteps({.rows = 32, .positions = 64}).size(), 3u);
}

}  // namespace
}  // namespace outrider::cuda
