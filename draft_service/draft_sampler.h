// The draft's sampler. It samples a token from the logits and feeds it back, until K tokens are drafted, more
// do not pay, or time is up. For a tree it samples all tokens at one depth, and feeds them back together.
#pragma once

#include "common/engine/sequence/sequence_state.h"

namespace outrider {

class DraftSampler final : public Sampler {
 public:
  void Begin(SequenceState& sequence) override;
  // Adds the sampled token to the proposal and, unless it is the last, to the sequence. With
  // ProposeWork::draw_next the first one becomes the answer's `next` instead. Draws a tree a level at a time.
  absl::StatusOr<bool> Sample(SequenceState& sequence, const LogitsView& rows) override;
  void Score(SequenceState& /*sequence*/, int /*first*/, const LogitsView& /*rows*/) override {}
  std::optional<DeviceTask> MakeDeviceTask(const SequenceState& sequence) const override;
  void TakeDeviceResult(SequenceState& sequence, DeviceTask& task) override;
  // Returns OK: the tokens drafted so far are the answer.
  std::optional<absl::Status> OnDeadline(SequenceState& sequence) override;

 private:
  absl::StatusOr<bool> SampleLevel(SequenceState& sequence, const LogitsView& rows);
};

}  // namespace outrider
