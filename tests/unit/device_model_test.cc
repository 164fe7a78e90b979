// Steps of a device in which some sequences have tasks and the host wants the logits of others.
#include <gtest/gtest.h>

#include "common/engine/cuda/step_plan.h"
#include "device_worker_testing.h"
#include "host_device_model.h"

namespace outrider::testing {
namespace {

// Three tasks, so that a graph of the next power of two has an idle one.
TEST(DeviceModel, DraftPassesLeaveTheLogitsOfTheHostAlone) {
  const auto device = Runner::Load(DeviceOptions(), HostDevice(/*team=*/2)).value();
  const auto host = Runner::Load(DeviceOptions()).value();
  const auto params = Params({.name = ""}, 1);
  std::vector<DeviceTask> tasks;
  for (int i = 0; i < 3; ++i)
    tasks.push_back({.params = params.get(), .round_start = 4, .work = ProposeTask{3}});
  const std::vector<TokenId> tokens[] = {{5, 6, 7, 8}, {1, 2, 3, 4}, {9, 8, 7, 6}, {4, 4, 4, 4}};
  std::vector<std::vector<BlockId>> blocks;
  std::vector<SequenceRows> batch;
  for (int s = 0; s < 4; ++s) blocks.push_back({2 * s, 2 * s + 1});
  for (size_t s = 0; s < 4; ++s) {
    batch.push_back({tokens[s], 0, blocks[s], s == 1 ? 4 : 1, s == 1 ? nullptr : &tasks[s > 1 ? s - 1 : 0]});
  }
  const auto found = device->Forward(batch);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->rows, 4);
  const auto expected = host->Forward({&batch[1], 1});
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (int r = 0; r < 4; ++r) EXPECT_EQ(found->row(r), expected->row(r)) << r;
  for (const DeviceTask& task : tasks) EXPECT_EQ(std::get<ProposeTask>(task.work).proposal.size(), 3u);
}

// A device runs these steps while it loads a model.
TEST(DeviceModel, RunsTheMadeUpSteps) {
  const auto device = Runner::Load(DeviceOptions(), HostDevice(/*team=*/1)).value();
  const cuda::WarmUpLimits limits{.rows = DeviceOptions().max_batch_rows,
                                  .positions = device->config().decoder.max_position_embeddings};
  std::vector<cuda::WarmUpStep> steps = cuda::DirectSteps(limits);
  for (const cuda::WarmUpStep& step : cuda::CommonSteps(limits, ModelRole::kAny)) steps.push_back(step);
  ASSERT_GT(steps.size(), 20u);
  for (const cuda::WarmUpStep& step : steps) {
    const cuda::MadeUpBatch batch(step, device->block_size());
    const auto logits = device->Forward(batch.rows());
    ASSERT_TRUE(logits.ok()) << logits.status();
    for (const SequenceRows& sequence : batch.rows()) {
      if (sequence.task == nullptr) continue;
      EXPECT_TRUE(device->CanRun(*sequence.task));
      EXPECT_TRUE(sequence.task->status.ok()) << sequence.task->status;
    }
  }
}

}  // namespace
}  // namespace outrider::testing
