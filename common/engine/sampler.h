// What a service does with logits: a draft samples tokens from them, a target judges a proposal by them.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/batch.h"
#include "common/engine/device_task.h"
#include "common/engine/sequence/sequence_state.h"

namespace outrider {

// Called from the engine thread, but for Sample.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // An item was taken in. Feeds what it proposes, and says how many rows of logits it needs.
  virtual void Begin(SequenceState& sequence) = 0;

  // Rows of a sequence whose prompt is to be scored: row i is what follows the token with index `first` + i.
  virtual void Score(SequenceState& sequence, int first, const LogitsView& rows) = 0;

  // All tokens are fed; `rows` holds the logits of this sequence, row 0 first, to be overwritten at will.
  // Fills in the answer. False if it fed more tokens, which must be computed first. Called for several
  // sequences at once, from several threads.
  virtual absl::StatusOr<bool> Sample(SequenceState& sequence, const LogitsView& rows) = 0;

  // What a device would do instead of Score and Sample, once all tokens are fed; nothing where only they can.
  virtual std::optional<DeviceTask> MakeDeviceTask(const SequenceState& sequence) const = 0;

  // A device has done so, well. Fills in the answer, and feeds the tokens that the device has fed itself.
  virtual void TakeDeviceResult(SequenceState& sequence, DeviceTask& task) = 0;

  // The item's time is over. OK ends it with the answer as it is, an error with that; nothing lets it go on.
  virtual std::optional<absl::Status> OnDeadline(SequenceState& sequence) = 0;
};

}  // namespace outrider
