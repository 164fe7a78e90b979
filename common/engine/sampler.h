// Turns logits into answers: the draft samples tokens from them, the target verifies a proposal against them.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/batch.h"
#include "common/engine/sequence/sequence_state.h"

namespace outrider {

// Called from the engine thread only, except for Sample.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // Starts an item: appends the tokens that it proposes and sets how many rows of logits it needs.
  virtual void Begin(SequenceState& sequence) = 0;

  // Scores rows of a prompt: row i holds the logits that follow the token with index `first` + i.
  virtual void Score(SequenceState& sequence, int first, const LogitsView& rows) = 0;

  // All tokens are computed; `rows` holds the sequence's logits, which may be overwritten. Fills in the
  // answer. Returns false if it appended tokens, which must be computed first. Called for several sequences
  // at once, from several threads.
  virtual absl::StatusOr<bool> Sample(SequenceState& sequence, const LogitsView& rows) = 0;

  // The task with which a device can replace Sample in the step that computes the last pending tokens;
  // nullopt if only the host can do the work.
  virtual std::optional<DeviceTask> MakeDeviceTask(const SequenceState& sequence) const = 0;

  // A device has completed the task. Fills in the answer and appends the tokens that the device computed
  // itself.
  virtual void TakeDeviceResult(SequenceState& sequence, DeviceTask& task) = 0;

  // The item's deadline has passed. OK ends the item with the answer as it is, an error ends it with that
  // error, and nullopt lets it continue.
  virtual std::optional<absl::Status> OnDeadline(SequenceState& sequence) = 0;
};

}  // namespace outrider
