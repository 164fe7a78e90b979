// What the draft does with logits: samples a token, and feeds it back until K are drafted.
#pragma once

#include "common/engine/worker.h"

namespace outrider {

class DraftSampler final : public Sampler {
 public:
  absl::Status Begin(SequenceState& sequence) override;
  // Appends the sampled token to the proposal, and to the cache unless it is the last.
  absl::StatusOr<bool> Decide(SequenceState& sequence, const LogitsView& rows) override;
  void Score(SequenceState& /*sequence*/, int /*first*/, const LogitsView& /*rows*/) override {}
  std::optional<DeviceTask> MakeDeviceTask(const SequenceState& sequence) const override;
  void TakeDeviceResult(SequenceState& sequence, DeviceTask& task) override;
  // OK: the answer is what has been kept so far.
  std::optional<absl::Status> OnDeadline(SequenceState& sequence) override;
};

}  // namespace outrider
