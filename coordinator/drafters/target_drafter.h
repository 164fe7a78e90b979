// Hands out what the target proposed itself, with its last verdict.
#pragma once

#include <utility>

#include "coordinator/rounds/drafter.h"

namespace outrider {

// Asks nobody: the loop has the target asked a round ahead. So there is nothing to propose in a generation's
// first round.
class TargetDrafter final : public Drafter {
 public:
  // `kind` is one of those that are the target.
  explicit TargetDrafter(v1::DrafterKind kind) : kind_(kind) {}

  void Begin(Generation& /*generation*/, const DraftLength& length) override { most_ = length.most; }
  // What OnProposal brought, if it was made to follow just these committed tokens, up to the depth that is
  // wanted.
  asio::awaitable<Proposal> Take(Generation& generation, v1::ItemTiming* timing) override;
  void OnVerdict(size_t /*n*/, const Verdict& /*verdict*/) override {}
  void OnProposal(size_t n, TargetProposal proposal) override {
    n_ = n;
    held_ = std::move(proposal);
  }
  v1::DrafterKind kind() const override { return kind_; }
  DraftOutcome outcome() const override { return outcome_; }
  void Stop(const Generation& /*generation*/) override {}

 private:
  const v1::DrafterKind kind_;
  int most_ = 0;
  TargetProposal held_;
  size_t n_ = 0;  // committed tokens that it follows
  DraftOutcome outcome_ = DraftOutcome::kUsable;
};

}  // namespace outrider
