// Drafters that leave the work to others: to the target, or to two drafters in turn.
#pragma once

#include <memory>
#include <utility>

#include "coordinator/decode/drafter.h"

namespace outrider {

// Hands out the proposal that the target made with its last verdict. Asks nobody: the loop asks the target a
// round ahead. So there is nothing to propose in a generation's first round.
class TargetDrafter final : public Drafter {
 public:
  // `kind` is one for which the target itself proposes, or NONE: then nobody gives it anything.
  TargetDrafter(Generation* generation, v1::DrafterKind kind) : Drafter(generation), kind_(kind) {}

  void Begin(const DraftLength& length) override { most_ = length.most; }
  // Returns the proposal given to OnProposal if it follows exactly these committed tokens, up to the wanted
  // depth.
  asio::awaitable<Proposal> Take(v1::ItemTiming* timing) override;
  void OnProposal(size_t n, TargetProposal proposal) override {
    n_ = n;
    held_ = std::move(proposal);
  }
  v1::DrafterKind kind() const override { return kind_; }
  DraftStatus status() const override { return status_; }

 private:
  const v1::DrafterKind kind_;
  int most_ = 0;
  TargetProposal held_;
  size_t n_ = 0;  // committed tokens that it follows
  DraftStatus status_ = DraftStatus::kUsable;
};

// Asks one drafter, and a second if the first has nothing to propose. The committed tokens decide which of
// them proposes, as long as the first looks at nothing else.
//
// If the second is the target, its proposal comes with a verdict, before the first is asked, and is dropped
// unused if the first proposes. Its time still counts as the round's time for drafting. While the first is
// right again and again, as where the text copies itself, the target is not asked; the round that ends this
// is plain.
class AutoDrafter final : public Drafter {
 public:
  AutoDrafter(Generation* generation, std::unique_ptr<Drafter> first, std::unique_ptr<Drafter> second)
      : Drafter(generation), first_(std::move(first)), second_(std::move(second)) {}

  // Always asks the first drafter first. If nothing is wanted, only the second has something to do.
  void Begin(const DraftLength& length) override;
  asio::awaitable<Proposal> Take(v1::ItemTiming* timing) override;
  // Each drafter hears of its own proposals only.
  void RunAhead(const Proposal& proposal, std::span<const Outcome> outcomes) override {
    last_->RunAhead(proposal, outcomes);
  }
  void OnVerdict(size_t n, const Verdict& verdict) override;
  // False if the first has just proposed, and its previous proposal was accepted as a whole.
  bool WantsTargetProposal() const override { return !(last_ == first_.get() && first_was_right_); }
  // Only the second may be the target.
  void OnProposal(size_t n, TargetProposal proposal) override;
  AheadReport ahead() const override { return last_ == nullptr ? AheadReport() : last_->ahead(); }
  v1::DrafterKind kind() const override { return last_ == nullptr ? v1::DRAFTER_KIND_AUTO : last_->kind(); }
  DraftStatus status() const override { return last_ == nullptr ? DraftStatus::kUsable : last_->status(); }
  void Stop() override {
    first_->Stop();
    second_->Stop();
  }

 private:
  const std::unique_ptr<Drafter> first_;
  const std::unique_ptr<Drafter> second_;
  DraftLength length_;            // of the proposal that was begun
  Drafter* last_ = nullptr;       // who was asked last
  size_t proposed_at_ = 0;        // committed tokens at the time
  size_t proposed_ = 0;           // tokens that the first proposed then
  bool first_was_right_ = false;  // the last round verified a proposal of the first, and accepted all of it
  v1::ItemTiming unused_;         // of the target's proposal at hand
};

}  // namespace outrider
