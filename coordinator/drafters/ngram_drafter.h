// Drafts what most often followed the last tokens earlier in the same sequence.
#pragma once

#include "coordinator/drafters/local_drafter.h"
#include "coordinator/drafters/ngram_table.h"

namespace outrider {

struct NgramOptions {
  int max_context = NgramTable::kMaxContext;  // tokens of the longest context, in [1, kMaxContext]
  int min_context = 1;                        // a token that only shorter ones suggest is not drafted
  int max_tokens = 4;                         // most tokens drafted in a round
  int history = 512;                          // tokens that the counts are of, at least 1
};

// The prompt seeds the counts, and only committed tokens change them.
class NgramDrafter final : public LocalDrafter {
 public:
  explicit NgramDrafter(const NgramOptions& options)
      : options_(options), table_(options.max_context, static_cast<size_t>(options.history)) {}

  Proposal Draft(const Generation& generation, int k) override;
  v1::DrafterKind kind() const override { return v1::DRAFTER_KIND_NGRAM; }
  const NgramTable& table() const { return table_; }

 private:
  const NgramOptions options_;
  NgramTable table_;
  size_t counted_ = 0;  // committed tokens that the table has seen
};

}  // namespace outrider
