// Drafts by sampling from distributions that need no model: what a model is compared with (Leviathan et al.,
// arXiv 2211.17192, section 3.6).
#pragma once

#include <memory>

#include "coordinator/drafters/local_drafter.h"
#include "coordinator/drafters/token_rows.h"

namespace outrider {

// Draws with the request's random key, as the draft service does: from the heaviest tokens of a row, which
// are then q, or by the race of the coupled rule. Temperature 0 takes the heaviest.
class RowDrafter final : public LocalDrafter {
 public:
  RowDrafter(v1::DrafterKind kind, std::unique_ptr<TokenRows> rows) : kind_(kind), rows_(std::move(rows)) {}

  Proposal Draft(const Generation& generation, int k) override;
  v1::DrafterKind kind() const override { return kind_; }

 private:
  const v1::DrafterKind kind_;
  const std::unique_ptr<TokenRows> rows_;
};

}  // namespace outrider
