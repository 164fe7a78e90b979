// Drafts what followed the most recent place in the same sequence that ends with the same tokens (prompt
// lookup).
#pragma once

#include "coordinator/drafters/local_drafter.h"

namespace outrider {

struct CopyOptions {
  int max_match = 3;   // tokens that are compared; a longer match than this is worth no more
  int history = 8192;  // committed tokens that are searched, the last ones
};

class CopyDrafter final : public LocalDrafter {
 public:
  explicit CopyDrafter(const CopyOptions& options) : options_(options) {}

  // Where the copied text runs into its own copy, it goes on with that.
  Proposal Draft(const Generation& generation, int k) override;
  v1::DrafterKind kind() const override { return v1::DRAFTER_KIND_COPY; }

 private:
  const CopyOptions options_;
};

}  // namespace outrider
