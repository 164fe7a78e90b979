// The target's sampler: verifies the proposal against the logits (common/spec/verify.h).
#pragma once

#include "common/engine/sampler.h"

namespace outrider {

class RejectionSampler final : public Sampler {
 public:
  // Appends the proposal's tokens. Needs a row of logits for each of them, and one for the last committed
  // token.
  void Begin(SequenceState& sequence) override;
  void Score(SequenceState& sequence, int first, const LogitsView& rows) override;
  absl::StatusOr<bool> Sample(SequenceState& sequence, const LogitsView& rows) override;
  std::optional<DeviceTask> MakeDeviceTask(const SequenceState& sequence) const override;
  void TakeDeviceResult(SequenceState& sequence, DeviceTask& task) override;
  // DEADLINE_EXCEEDED unless the item was started.
  std::optional<absl::Status> OnDeadline(SequenceState& sequence) override;
};

}  // namespace outrider
