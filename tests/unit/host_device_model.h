// Simulates a device on the host. The CPU's engine does the forward passes, and the GPU's code the rest: its
// plans, its memory layout and the source of its kernels.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/backend.h"
#include "common/engine/model.h"

namespace outrider::testing {

// Runs device tasks as the CUDA plug-in does. Computes in float32, whatever dtype is requested.
class HostDeviceModel final : public Model {
 public:
  // `team` threads work on a row. `cpu` has one block more than this model.
  HostDeviceModel(std::unique_ptr<Model> cpu, const DecoderConfig& spec, int block_size, int team)
      : cpu_(std::move(cpu)), spec_(spec), block_size_(block_size), team_(team) {}

  absl::StatusOr<LogitsView> Forward(absl::Span<const SequenceRows> batch, const PassOptions& pass) override;
  void CopyBlock(BlockId from, BlockId to) override { cpu_->CopyBlock(from, to); }
  void MoveSlots(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves) override {
    cpu_->MoveSlots(blocks, moves);
  }
  absl::Status ReadSlot(BlockId block, int slot, absl::Span<float> values) override {
    return cpu_->ReadSlot(block, slot, values);
  }
  void Wake() override { cpu_->Wake(); }
  bool CanRun(const DeviceTask& task) const override;
  bool row_invariant() const override { return true; }
  bool tree_row_invariant() const override { return true; }
  std::string dtype() const override { return cpu_->dtype(); }
  std::string kernel_name() const override { return cpu_->kernel_name(); }
  int kv_blocks() const override { return cpu_->kv_blocks() - 1; }
  int max_positions() const override;
  size_t bytes_per_block() const override { return cpu_->bytes_per_block(); }
  size_t weight_bytes() const override { return cpu_->weight_bytes(); }

 private:
  const std::unique_ptr<Model> cpu_;
  const DecoderConfig spec_;
  const int block_size_;
  const int team_;
  std::vector<float> logits_;
};

// Loads HostDeviceModels. Accepts any dtype.
class HostDevice final : public Backend {
 public:
  explicit HostDevice(int team) : team_(team) {}

  absl::Status Check(const RunnerOptions& /*options*/) const override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Model>> Load(const DecoderConfig& spec, const TensorSource& weights,
                                              const RunnerOptions& options,
                                              ThreadPool& threads) const override;

 private:
  const int team_;
};

}  // namespace outrider::testing
