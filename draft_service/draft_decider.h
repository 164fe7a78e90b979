// What the draft does with logits: samples a token, and feeds it back until K are drafted.
#pragma once

#include "common/engine/worker.h"

namespace outrider {

class DraftDecider final : public Decider {
 public:
  absl::Status Begin(Session& session) override;
  // Appends the sampled token to the proposal, and to the cache unless it is the last.
  absl::StatusOr<bool> Decide(Session& session, const LogitsView& rows) override;
  void Score(Session& /*session*/, int /*first*/, const LogitsView& /*rows*/) override {}
  std::optional<DeviceTask> Delegate(const Session& session) const override;
  void Conclude(Session& session, DeviceTask& task) override;
  // OK: the answer is what has been kept so far.
  std::optional<absl::Status> OnDeadline(Session& session) override;
};

}  // namespace outrider
