// What the target does with logits: judges the proposal by them (common/spec/verify.h).
#pragma once

#include "common/engine/sampler.h"

namespace outrider {

class RejectionSampler final : public Sampler {
 public:
  // Feeds the proposal's nodes; needs a row for each of them, and one for the token after the committed ones.
  void Begin(SequenceState& sequence) override;
  void Score(SequenceState& sequence, int first, const LogitsView& rows) override;
  absl::StatusOr<bool> Sample(SequenceState& sequence, const LogitsView& rows) override;
  std::optional<DeviceTask> MakeDeviceTask(const SequenceState& sequence) const override;
  void TakeDeviceResult(SequenceState& sequence, DeviceTask& task) override;
  // DEADLINE_EXCEEDED unless the item was started.
  std::optional<absl::Status> OnDeadline(SequenceState& sequence) override;
};

}  // namespace outrider
