// The drafter that asks two drafts at once.
#pragma once

#include <memory>
#include <utility>

#include "coordinator/decode/drafter.h"

namespace outrider {

// Verifies the proposals of two drafters as one tree, in which both begin at the last committed token. Each
// node keeps the q of its own draft, equal tokens included: merged into one node they would be tried only
// once, and the text would no longer have the target's distribution (docs/papers.md, "Where they err"). The
// two must draw independently of each other.
class PairedDrafter final : public Drafter {
 public:
  PairedDrafter(Generation* generation, std::unique_ptr<Drafter> first, std::unique_ptr<Drafter> second)
      : Drafter(generation), first_(std::move(first)), second_(std::move(second)) {}

  void Begin(const DraftLength& length) override {
    first_->Begin(length);
    second_->Begin(length);
  }
  // Either proposal may be empty. The time is that of the slower draft.
  asio::awaitable<Proposal> Take(v1::ItemTiming* timing) override;
  // Tells each drafter which of its own tokens are committed.
  void OnVerdict(size_t n, const Verdict& verdict) override;
  v1::DrafterKind kind() const override { return v1::DRAFTER_KIND_BOTH_MODELS; }
  // Usable if either is.
  DraftStatus status() const override {
    return second_->status() == DraftStatus::kUsable ? DraftStatus::kUsable : first_->status();
  }
  void Stop() override {
    first_->Stop();
    second_->Stop();
  }

 private:
  const std::unique_ptr<Drafter> first_;
  const std::unique_ptr<Drafter> second_;
  int of_first_ = 0;  // nodes of the last proposal that are the first drafter's
};

}  // namespace outrider
