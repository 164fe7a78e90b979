// The target's sampler: verifies the proposal against the logits (common/spec/verify.h).
#pragma once

#include "absl/status/statusor.h"
#include "common/engine/sequence/sequence_state.h"
#include "common/engine/work_item.h"

namespace outrider {

class RejectionSampler final : public Sampler {
 public:
  // `takes_rounded_trees`: whether to take trees for greedy decoding and the coupled rule, where a tree's
  // row must have the bits of a chain's. If not, they are refused there with INVALID_ARGUMENT, reason
  // TREE_UNSUPPORTED. Under the block rule and with lenience below 1 they always are.
  explicit RejectionSampler(bool takes_rounded_trees = true) : takes_rounded_trees_(takes_rounded_trees) {}

  // Appends the proposal's tokens. Needs a row of logits for each of them, and one for the last committed
  // token.
  void Begin(SequenceState& sequence) override;
  void Score(SequenceState& sequence, int first, const LogitsView& rows) override;
  absl::StatusOr<bool> Sample(SequenceState& sequence, const LogitsView& rows) override;
  std::optional<DeviceTask> MakeDeviceTask(const SequenceState& sequence) const override;
  void TakeDeviceResult(SequenceState& sequence, DeviceTask& task) override;
  // DEADLINE_EXCEEDED unless the item was started.
  std::optional<absl::Status> OnDeadline(SequenceState& sequence) override;

 private:
  const bool takes_rounded_trees_;
};

// The most candidates that can be asked for after a token.
inline constexpr int kMaxCandidates = 256;

// Returns the `n` most probable tokens of each row, best first, ties to the lowest id, with the logarithms of
// their probabilities before any controls. INTERNAL if a logit is not finite.
absl::StatusOr<std::vector<CandidateRow>> Candidates(const LogitsView& logits, int n);

}  // namespace outrider
