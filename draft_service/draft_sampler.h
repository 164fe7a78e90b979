// The draft's sampler. It samples a token from the logits and feeds it back, until K tokens are drafted, more
// do not pay, or time is up. For a tree it samples all tokens at one depth, and feeds them back together.
//
// A chain can itself be drafted by speculation: with the last token the sampler feeds back a guess at the
// next ones (lookup.h), and keeps as much of it as it then draws. Each token is drawn from the row of the
// tokens before it, with its own random number, guessed or not, so the proposal is the one without guesses.
#pragma once

#include "common/engine/sequence/sequence_state.h"

namespace outrider {

class DraftSampler final : public Sampler {
 public:
  // `lookup_tokens`: the most tokens of a guess; 0: no guesses.
  explicit DraftSampler(int lookup_tokens = 0) : lookup_tokens_(lookup_tokens) {}

  void Begin(SequenceState& sequence) override;
  // Adds the sampled tokens to the proposal and, but for the last of it, to the sequence. With
  // ProposeWork::draw_next the first one becomes the answer's `next` instead. Draws a tree a level at a time.
  absl::StatusOr<bool> Sample(SequenceState& sequence, const LogitsView& rows) override;
  void Score(SequenceState& /*sequence*/, int /*first*/, const LogitsView& /*rows*/) override {}
  std::optional<DeviceTask> MakeDeviceTask(const SequenceState& sequence) const override;
  void TakeDeviceResult(SequenceState& sequence, DeviceTask& task) override;
  // Returns OK: the tokens drafted so far are the answer.
  std::optional<absl::Status> OnDeadline(SequenceState& sequence) override;

 private:
  absl::StatusOr<bool> SampleLevel(SequenceState& sequence, const LogitsView& rows);
  // Appends a guess at the tokens that are drawn next.
  void Guess(SequenceState& sequence) const;

  const int lookup_tokens_;
};

}  // namespace outrider
