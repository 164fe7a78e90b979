// The plan of a step on the device.
#include "common/engine/cuda/step_plan.h"

#include <gmock/gmock.h>

#include <random>
#include <set>

#include "common/engine/cuda/layer_rows.h"
#include "common/engine/cuda/step_memory.h"

namespace outrider::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::SizeIs;

constexpr int kBlockSize = 4;
const std::vector<BlockId> kSpare = {99};

auto Place(int position, int block, int slot) {
  return ::testing::AllOf(Field(&RowPlace::position, position), Field(&RowPlace::block, block),
                          Field(&RowPlace::slot, slot));
}

DeviceTask Propose(const SequenceParams& params, int draft_tokens) {
  return {.params = &params, .round_start = 0, .work = ProposeTask{draft_tokens, {}}, .status = {}};
}

TEST(PlanStep, RowsAreWhereTheBlockTablesSay) {
  const std::vector<TokenId> first = {10, 11, 12}, second = {20};
  const std::vector<BlockId> first_blocks = {5, 7}, second_blocks = {3};
  const std::vector<SequenceRows> batch = {{first, 3, first_blocks, 1}, {second, 0, second_blocks, 1}};
  const StepPlan plan = PlanStep(batch, kBlockSize, kSpare);
  EXPECT_THAT(plan.tokens, ElementsAre(10, 11, 12, 20));
  EXPECT_THAT(plan.first.places, ElementsAre(Place(3, 5, 3), Place(4, 7, 0), Place(5, 7, 1), Place(0, 3, 0)));
  EXPECT_THAT(plan.first.sequences,
              ElementsAre(Field(&AttentionSequence::length, 6), Field(&AttentionSequence::length, 1)));
  EXPECT_THAT(plan.logit_rows, ElementsAre(2, 3));
  EXPECT_EQ(plan.host_rows, 2);
}

TEST(PlanStep, RowsOfTasksComeBeforeThoseOfTheHost) {
  const SequenceParams params;
  DeviceTask task{.params = &params, .round_start = 0, .work = VerifyTask{}, .status = {}};
  const std::vector<TokenId> tokens = {1, 2};
  const std::vector<BlockId> blocks = {0};
  const std::vector<SequenceRows> batch = {
      {tokens, 0, blocks, 1}, {tokens, 0, blocks, 2, &task}, {tokens, 0, blocks, 0}};
  const StepPlan plan = PlanStep(batch, kBlockSize, kSpare);
  EXPECT_THAT(plan.logit_rows, ElementsAre(2, 3, 1));
  EXPECT_EQ(plan.host_rows, 1);
  EXPECT_THAT(plan.tasks, ElementsAre(&task));
}

TEST(PlanStep, RowsOfTheHostLieBeyondThoseThatDraftPassesWrite) {
  const SequenceParams params;
  const std::vector<TokenId> tokens = {1};
  const std::vector<BlockId> blocks = {0, 1, 2};
  std::mt19937 random(1);
  for (int step = 0; step < 200; ++step) {
    const size_t proposals = 1 + random() % 300, others = random() % 300;
    std::vector<DeviceTask> tasks(proposals, Propose(params, 3));
    std::vector<SequenceRows> batch(others, {tokens, 0, blocks, 1});
    for (DeviceTask& task : tasks) batch.push_back({tokens, 0, blocks, 1, &task});
    const StepPlan plan = PlanStep(batch, kBlockSize, kSpare);
    const StepShape shape = ShapeOf(plan);
    const int wanted = static_cast<int>(proposals + others);
    ASSERT_GE(shape.tasks, static_cast<int>(proposals));
    ASSERT_GE(static_cast<int>(plan.logit_rows.size()) - plan.host_rows,
              others == 0 ? 0 : PaddedRows(shape.tasks));
    // The model has memory for this many rows.
    ASSERT_LT(static_cast<int>(plan.logit_rows.size()), wanted + kMaxIdleRows);
    ASSERT_LT(shape.logit_rows, wanted + kMaxIdleRows);
  }
}

TEST(PlanStep, ADraftThatIsDoneIsIdleInTheSpareBlock) {
  const SequenceParams params;
  DeviceTask one = Propose(params, 1), three = Propose(params, 3);
  const std::vector<TokenId> tokens = {1, 2, 3};
  const std::vector<BlockId> blocks = {6, 8};
  const std::vector<SequenceRows> batch = {{tokens, 0, blocks, 1, &one}, {tokens, 0, blocks, 1, &three}};
  const StepPlan plan = PlanStep(batch, kBlockSize, kSpare);
  ASSERT_THAT(plan.draft_passes, SizeIs(2));
  EXPECT_THAT(plan.draft_passes[0].places, ElementsAre(Place(0, 99, 0), Place(3, 6, 3)));
  EXPECT_THAT(plan.draft_passes[1].places, ElementsAre(Place(0, 99, 0), Place(4, 8, 0)));
  EXPECT_EQ(plan.draft_passes[1].sequences[1].length, 5);
}

TEST(ShapeOf, IsTheSameForStepsThatDifferALittle) {
  const std::vector<BlockId> blocks(200, 1);
  const auto shape = [&](int sequences, int rows, int position) {
    const std::vector<TokenId> tokens(rows, 1);
    const std::vector<SequenceRows> batch(sequences, {tokens, position, blocks, rows});
    return ShapeOf(PlanStep(batch, kBlockSize, kSpare));
  };
  EXPECT_EQ(shape(1, 3, 0), shape(1, 8, 200));
  EXPECT_EQ(shape(3, 1, 0), shape(4, 4, 10));
  EXPECT_EQ(shape(1, 33, 0), shape(1, 64, 0));
  EXPECT_NE(shape(1, 16, 0), shape(1, 17, 0));
  EXPECT_NE(shape(1, 256, 0), shape(1, 257, 0));
}

TEST(Capacity, HoldsAsManyAndIsAFewNumbers) {
  std::set<int> rows, tasks;
  for (int count = 1; count <= 2048; ++count) {
    ASSERT_GE(RowCapacity(count), count);
    ASSERT_GE(TaskCapacity(count), count);
    ASSERT_EQ(RowCapacity(count) % kRowTile, 0);
    ASSERT_LT(RowCapacity(count) - count, kMaxIdleRows / 2);
    ASSERT_LT(TaskCapacity(count) - count, kMaxIdleRows / 2);
    // Each task has a row, and a lower count never has a larger capacity.
    ASSERT_LE(TaskCapacity(count), RowCapacity(count));
    ASSERT_GE(RowCapacity(count + 1), RowCapacity(count));
    if (count > kMaxCapturedRows) continue;
    rows.insert(RowCapacity(count));
    tasks.insert(TaskCapacity(count));
  }
  EXPECT_THAT(rows, ElementsAre(16, 32, 64, 128, 192, 256));
  EXPECT_THAT(tasks, ElementsAre(1, 2, 4, 8, 16, 32, 64, 128, 192, 256));
}

// The passes after the first have a row for each task that fits the shape.
TEST(ShapeOf, HasLogitRowsForEveryDraft) {
  const SequenceParams params;
  std::vector<DeviceTask> tasks(33, Propose(params, 2));
  const std::vector<TokenId> tokens = {1};
  const std::vector<BlockId> blocks = {0};
  std::vector<SequenceRows> batch;
  for (DeviceTask& task : tasks) batch.push_back({tokens, 0, blocks, 1, &task});
  const StepShape shape = ShapeOf(PlanStep(batch, kBlockSize, kSpare));
  EXPECT_EQ(shape.tasks, 64);
  EXPECT_GE(shape.logit_rows, shape.tasks);
}

TEST(LayOut, ArraysDoNotOverlapAndEndWithTheMemory) {
  const StepShape shape{.rows = 16, .logit_rows = 16, .tasks = 4, .proposes = false, .draft_passes = 0};
  StepInputs inputs;
  const size_t bytes = LayOut(shape, nullptr, inputs);
  std::vector<char> memory(bytes);
  EXPECT_EQ(LayOut(shape, memory.data(), inputs), bytes);
  EXPECT_GE(reinterpret_cast<char*>(inputs.places), reinterpret_cast<char*>(inputs.tokens + shape.rows));
  EXPECT_GE(reinterpret_cast<char*>(inputs.verify),
            reinterpret_cast<char*>(inputs.shape_params + shape.logit_rows));
  EXPECT_LE(reinterpret_cast<char*>(inputs.q_weights + shape.logit_rows * kMaxTopN), memory.data() + bytes);
  EXPECT_EQ(inputs.propose, nullptr);
  EXPECT_EQ(inputs.draft_places, nullptr);
}

}  // namespace
}  // namespace outrider::cuda
