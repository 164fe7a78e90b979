// A device without a device: forward passes of the CPU's engine, and for everything else what the GPU runs,
// its plans, its memory layout and the source of its kernels, on the host.
#pragma once

#include <memory>
#include <vector>

#include "common/engine/cuda_plugin.h"
#include "common/engine/model.h"
#include "common/engine/runner.h"

namespace outrider::testing {

// Decides as the CUDA library does. Computes in float32, whatever type it is asked for.
class HostDeviceModel final : public Model {
 public:
  // A factory for RunnerOptions::make_device_model. `team` threads decide about a row.
  static DeviceModelFactory Factory(int team);

  absl::StatusOr<LogitsView> Forward(absl::Span<const SequenceRows> batch) override;
  void CopyBlock(BlockId from, BlockId to) override { cpu_->CopyBlock(from, to); }
  bool decides() const override { return true; }
  int kv_blocks() const override { return cpu_->kv_blocks() - 1; }
  int max_positions() const override;
  size_t bytes_per_block() const override { return cpu_->bytes_per_block(); }
  size_t weight_bytes() const override { return cpu_->weight_bytes(); }

 private:
  HostDeviceModel(std::unique_ptr<Runner> cpu, int team) : cpu_(std::move(cpu)), team_(team) {}

  const std::unique_ptr<Runner> cpu_;
  const int team_;
  std::vector<float> logits_;
};

}  // namespace outrider::testing
