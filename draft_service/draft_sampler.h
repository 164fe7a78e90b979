// What the draft does with logits: samples a token, and feeds it back until K are drafted.
#pragma once

#include "common/engine/sampler.h"

namespace outrider {

class DraftSampler final : public Sampler {
 public:
  void Begin(SequenceState& sequence) override;
  // Adds the sampled token to the proposal, and feeds it unless it is the last.
  absl::StatusOr<bool> Sample(SequenceState& sequence, const LogitsView& rows) override;
  void Score(SequenceState& /*sequence*/, int /*first*/, const LogitsView& /*rows*/) override {}
  std::optional<DeviceTask> MakeDeviceTask(const SequenceState& sequence) const override;
  void TakeDeviceResult(SequenceState& sequence, DeviceTask& task) override;
  // OK: the answer is what was drafted until now.
  std::optional<absl::Status> OnDeadline(SequenceState& sequence) override;
};

}  // namespace outrider
