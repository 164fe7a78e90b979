// The draft's sampler. It samples a token from the logits and feeds it back, until K tokens are drafted, more
// do not pay, or time is up. For a tree it samples all tokens at one depth, and feeds them back together.
//
// A chain can itself be drafted by speculation: with the last token the sampler feeds back a guess at the
// next ones (lookup.h), and keeps as much of it as it then draws. Each token is drawn from the row of the
// tokens before it, with its own random number, guessed or not, so the proposal is the one without guesses.
//
// A model that was trained to (An et al. 2025, "PARD", arXiv 2504.18583) drafts several tokens in one forward
// pass: mask tokens stand for those that are not drawn yet, and each one's row is the distribution of the
// token after it. That row is the token's q, so verification stays exact.
#pragma once

#include "common/engine/sequence/sequence_state.h"

namespace outrider {

struct DraftOptions {
  int lookup_tokens = 0;    // the most tokens of a guess; 0: no guesses
  int parallel_tokens = 1;  // drafted in one forward pass with `mask`; above 1 there are no guesses
  TokenId mask = 0;
};

class DraftSampler final : public Sampler {
 public:
  explicit DraftSampler(const DraftOptions& options = {}) : options_(options) {}

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
  absl::StatusOr<bool> SampleMasked(SequenceState& sequence, const LogitsView& rows);
  // Appends a guess at the tokens that are drawn next, or masks in their place.
  void Guess(SequenceState& sequence) const;

  const DraftOptions options_;
};

}  // namespace outrider
