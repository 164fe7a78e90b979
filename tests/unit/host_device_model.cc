#include "host_device_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>

#include "common/engine/cuda/decide_convert.h"
#include "common/engine/cuda/layer_rows.h"
#include "common/engine/cuda/step_memory.h"
#include "common/engine/cuda/step_plan.h"
#include "host_kernels.h"

namespace outrider::testing {
namespace {

using cuda::StepInputs;
using cuda::StepOutputs;
using cuda::StepPlan;
using cuda::StepShape;

// The memory of one step, and the kernels that work on it.
class HostStep {
 public:
  HostStep(const StepPlan& plan, BlockId spare, int vocab, int team)
      : plan_(plan), shape_(ShapeOf(plan)), vocab_(vocab), team_(team) {
    input_.resize(LayOut(shape_, nullptr, inputs));
    output_.resize(LayOut(shape_, nullptr, outputs_));
    LayOut(shape_, input_.data(), inputs);
    LayOut(shape_, output_.data(), outputs_);
    WriteInputs(plan, shape_, spare, inputs);
    shaped_.resize(static_cast<size_t>(shape_.logit_rows));
    next_tokens.resize(static_cast<size_t>(shape_.tasks));
  }

  void Shape(float* logits, int rows) {
    HostShape(team_, logits, vocab_, rows, inputs.shape_params, shaped_.data());
  }

  void Propose(const float* weights, int step) {
    const int at = step * shape_.tasks;
    HostPropose(team_, weights, vocab_, shape_.tasks, shaped_.data(), inputs.propose, step,
                outputs_.proposals + at, outputs_.q_ids + at * cuda::kMaxTopN,
                outputs_.q_weights + at * cuda::kMaxTopN, next_tokens.data());
  }

  void Verify(const float* weights) {
    std::vector<int32_t> races(static_cast<size_t>(shape_.logit_rows));
    HostVerify(team_, weights, vocab_, shape_.tasks, shaped_.data(), inputs.verify, inputs.drafted,
               inputs.q_ids, inputs.q_weights, races.data(), outputs_.verdicts);
  }

  void Read() { ReadOutputs(plan_, shape_, outputs_); }
  const StepShape& shape() const { return shape_; }

  StepInputs inputs;
  std::vector<int32_t> next_tokens;

 private:
  const StepPlan& plan_;
  const StepShape shape_;
  const int vocab_, team_;
  std::vector<char> input_, output_;
  StepOutputs outputs_;
  std::vector<cuda::ShapedRow> shaped_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> HostDevice::Load(const DecoderConfig& spec,
                                                        const TensorSource& weights,
                                                        const RunnerOptions& options,
                                                        ThreadPool& threads) const {
  RunnerOptions load = options;
  load.dtype = "float32";
  load.kv_blocks = options.kv_blocks + 1;  // and the spare one
  absl::StatusOr<std::unique_ptr<Model>> cpu =
      (*BackendFor("native", "cpu"))->Load(spec, weights, load, threads);
  if (!cpu.ok()) return cpu.status();
  return std::make_unique<HostDeviceModel>(*std::move(cpu), spec, options.block_size, team_);
}

bool HostDeviceModel::CanRun(const DeviceTask& task) const { return cuda::CanRun(task, spec_); }

int HostDeviceModel::max_positions() const {
  return std::min(spec_.max_position_embeddings, kv_blocks() * block_size_);
}

absl::StatusOr<LogitsView> HostDeviceModel::Forward(absl::Span<const SequenceRows> batch,
                                                    const PassOptions& options) {
  const int vocab = spec_.vocab_size;
  const std::vector<BlockId> spare = {kv_blocks()};
  const StepPlan plan = cuda::PlanStep(batch, block_size_, spare);
  HostStep step(plan, spare[0], vocab, team_);

  // The first pass, over the plan's rows.
  std::vector<SequenceRows> passes;
  std::map<int32_t, int> logits_of;  // by row of the pass
  int row = 0;
  for (SequenceRows sequence : batch) {
    const int count = static_cast<int>(sequence.tokens.size());
    EXPECT_TRUE(std::equal(sequence.tokens.begin(), sequence.tokens.end(), step.inputs.tokens + row));
    row += count;
    for (int i = sequence.logit_rows; i > 0; --i)
      logits_of.emplace(row - i, static_cast<int>(logits_of.size()));
    sequence.task = nullptr;
    passes.push_back(sequence);
  }
  absl::StatusOr<LogitsView> logits = cpu_->Forward(passes, options);
  if (!logits.ok()) return logits.status();
  const auto copy_row = [&](int from, int to) {
    std::copy_n(logits->row(from).data(), vocab, logits_.begin() + int64_t{to} * vocab);
  };
  logits_.assign(static_cast<size_t>(step.shape().logit_rows) * static_cast<size_t>(vocab), 0);
  const int logit_rows = static_cast<int>(plan.logit_rows.size());
  for (int i = 0; i < logit_rows; ++i) {
    const auto wanted = logits_of.find(step.inputs.logit_rows[i]);
    if (wanted != logits_of.end()) copy_row(wanted->second, i);
  }
  if (!plan.tasks.empty()) {
    step.Shape(logits_.data(), step.shape().logit_rows);
    if (step.shape().proposes) {
      step.Propose(logits_.data(), 0);
    } else {
      step.Verify(logits_.data());
    }
  }

  for (int pass = 1; pass <= step.shape().draft_passes; ++pass) {
    passes.clear();
    std::vector<int> active;
    int task = 0;
    for (const SequenceRows& sequence : batch) {
      if (sequence.task == nullptr) continue;
      const cuda::RowPlace& place = step.inputs.draft_places[(pass - 1) * step.shape().tasks + task];
      if (place.block != spare[0]) {
        EXPECT_EQ(sequence.blocks[static_cast<size_t>(place.position / block_size_)], place.block);
        EXPECT_EQ(place.position % block_size_, place.slot);
        active.push_back(task);
        passes.push_back({absl::MakeConstSpan(&step.next_tokens[static_cast<size_t>(task)], 1),
                          place.position, sequence.blocks, 1});
      }
      ++task;
    }
    logits = cpu_->Forward(passes, options);
    if (!logits.ok()) return logits.status();
    // A device writes the rows of idle tasks too, and whole tiles of rows.
    std::fill_n(logits_.begin(), int64_t{cuda::PaddedRows(step.shape().tasks)} * vocab,
                std::numeric_limits<float>::quiet_NaN());
    for (size_t i = 0; i < active.size(); ++i) copy_row(static_cast<int>(i), active[i]);
    step.Shape(logits_.data(), step.shape().tasks);
    step.Propose(logits_.data(), pass);
  }
  step.Read();
  // The host's logits, as a device copies them after the last pass.
  return LogitsView{logits_.data() + int64_t{logit_rows - plan.host_rows} * vocab, plan.host_rows, vocab};
}

}  // namespace outrider::testing
