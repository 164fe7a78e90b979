#include "coordinator/drafters/make_drafter.h"

#include <utility>

#include "coordinator/drafters/auto_drafter.h"
#include "coordinator/drafters/model_drafter.h"
#include "coordinator/drafters/row_drafter.h"
#include "coordinator/drafters/target_drafter.h"

namespace outrider {
namespace {

// For plain decoding.
class NoDrafter final : public LocalDrafter {
 public:
  Proposal Draft(const Generation& /*generation*/, int /*k*/) override { return {}; }
  v1::DrafterKind kind() const override { return v1::DRAFTER_KIND_NONE; }
};

std::unique_ptr<Drafter> MakeModelDrafter(const DrafterParts& parts, int vocab, Fork fork) {
  return std::make_unique<ModelDrafter>(parts.drafts, parts.metrics, parts.draft_budget, vocab,
                                        std::move(fork));
}

std::unique_ptr<Drafter> MakeAutoDrafter(const Request& request, const DrafterParts& parts, int vocab,
                                         Fork fork) {
  std::unique_ptr<Drafter> second;
  if (request.params.proposer() == v1::PROPOSER_EAGLE) {
    second = std::make_unique<TargetDrafter>(v1::DRAFTER_KIND_EAGLE);
  } else if (parts.drafts != nullptr) {
    second = MakeModelDrafter(parts, vocab, std::move(fork));
  } else {
    return std::make_unique<NgramDrafter>(parts.ngram);
  }
  NgramOptions only_long = parts.ngram;
  only_long.min_context = only_long.max_context;
  return std::make_unique<AutoDrafter>(std::make_unique<NgramDrafter>(only_long), std::move(second));
}

}  // namespace

std::unique_ptr<Drafter> MakeDrafter(const Request& request, const DrafterParts& parts, int vocab,
                                     Fork fork) {
  const v1::DrafterKind kind = request.drafter;
  switch (kind) {
    case v1::DRAFTER_KIND_MODEL:
      return MakeModelDrafter(parts, vocab, std::move(fork));
    case v1::DRAFTER_KIND_NGRAM:
      return std::make_unique<NgramDrafter>(parts.ngram);
    case v1::DRAFTER_KIND_COPY:
      return std::make_unique<CopyDrafter>(parts.copy);
    case v1::DRAFTER_KIND_AUTO:
      return MakeAutoDrafter(request, parts, vocab, std::move(fork));
    case v1::DRAFTER_KIND_UNIGRAM:
      return std::make_unique<RowDrafter>(kind, MakeUnigramRows(parts.corpus, vocab));
    case v1::DRAFTER_KIND_BIGRAM:
      return std::make_unique<RowDrafter>(kind, MakeBigramRows(parts.corpus, vocab));
    case v1::DRAFTER_KIND_RANDOM:
      return std::make_unique<RowDrafter>(kind, MakeRandomRows(vocab));
    case v1::DRAFTER_KIND_MEDUSA:
    case v1::DRAFTER_KIND_BLOCKWISE:
    case v1::DRAFTER_KIND_EAGLE:
    case v1::DRAFTER_KIND_LAYER_SKIP:
    case v1::DRAFTER_KIND_PASS:
      return std::make_unique<TargetDrafter>(kind);
    default:
      return std::make_unique<NoDrafter>();
  }
}

}  // namespace outrider
