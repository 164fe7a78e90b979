// What the target does with logits: verifies the draft, and truncates its cache to what stands.
#pragma once

#include "common/engine/worker.h"

namespace outrider {

class RejectionSampler final : public Sampler {
 public:
  // Feeds the drafted tokens after the committed ones; wants a row for each of them and one for the token
  // after them.
  absl::Status Begin(SequenceState& sequence) override;
  void Score(SequenceState& sequence, int first, const LogitsView& rows) override;
  absl::StatusOr<bool> Decide(SequenceState& sequence, const LogitsView& rows) override;
  std::optional<DeviceTask> MakeDeviceTask(const SequenceState& sequence) const override;
  void TakeDeviceResult(SequenceState& sequence, DeviceTask& task) override;
  // DEADLINE_EXCEEDED unless the item was begun.
  std::optional<absl::Status> OnDeadline(SequenceState& sequence) override;
};

}  // namespace outrider
