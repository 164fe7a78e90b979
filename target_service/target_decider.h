// What the target does with logits: verifies the draft, and truncates its cache to what stands.
#pragma once

#include "common/engine/worker.h"

namespace outrider {

class TargetDecider final : public Decider {
 public:
  // Feeds the drafted tokens after the committed ones; wants a row for each of them and one for the token
  // after them.
  absl::Status Begin(Session& session) override;
  void Score(Session& session, int first, const LogitsView& rows) override;
  absl::StatusOr<bool> Decide(Session& session, const LogitsView& rows) override;
  std::optional<DeviceTask> Delegate(const Session& session) const override;
  void Conclude(Session& session, DeviceTask& task) override;
  // DEADLINE_EXCEEDED unless the item was begun.
  std::optional<absl::Status> OnDeadline(Session& session) override;
};

}  // namespace outrider
